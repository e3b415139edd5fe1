"""A small DDP job that profiles itself, with one situation planted: ``python job.py FOLDER OPTIONS``, once a rank.

It needs torch and nothing of the doctor. Steps are timed twice: without the profiler (``seconds``: what a plant costs),
then with it (the trace). Every delay is work; nothing sleeps.
"""

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

#: Values a rank: ``{"1": 2}`` for one rank, ``{"*": 2}`` for all.
ByRank = dict[str, Any]


@dataclass(frozen=True)
class Situation:
    """What a job does; the defaults are a healthy one."""

    device: str = "cpu"
    ranks: int = 2
    model: str = "mlp"  # mlp, norm (with buffers), cnn, transformer
    width: int = 512
    depth: int = 6
    batch: int = 64
    timed: int = 0  # steps without the profiler
    steps: int = 4  # steps in the trace
    before: int = 3  # steps before either
    ddp: dict[str, Any] = field(default_factory=dict)
    hook: str = ""
    optimizer: str = "sgd"  # sgd, adamw, loop (one tensor after the other)
    accumulate: int = 1
    no_sync: bool = False
    unused: bool = False
    passes: ByRank = field(default_factory=dict)  # more passes through the body
    samples: ByRank = field(default_factory=dict)  # another batch size
    loading: ByRank = field(default_factory=dict)  # milliseconds of work for each batch
    workers: int = 0
    pin: bool = False
    non_blocking: bool = False
    pause: ByRank = field(default_factory=dict)  # every Nth step, milliseconds of Python after the step
    save: ByRank = field(default_factory=dict)  # every Nth step, a checkpoint
    python: ByRank = field(default_factory=dict)  # milliseconds of Python between the layers
    item: int = 0  # .item() so often a step
    reductions: int = 0
    barrier: bool = False
    stack: bool = False
    shapes: bool = True
    scheduled: bool = True
    groups: bool = False


class Body(nn.Module):
    """Layers of one kind, with a head; ``again`` goes through them once more."""

    def __init__(self, of: Situation, python_ms: float) -> None:
        super().__init__()
        self.kind, self.python_ms, width = of.model, python_ms, of.width
        self.stem: nn.Module = nn.Identity()
        if of.model == "cnn":
            self.stem = nn.Conv2d(3, width, 3, padding=1)
            layers = [
                nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
                for _ in range(of.depth)
            ]
        elif of.model == "transformer":
            self.stem = nn.Embedding(2000, width)
            layers = [
                nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(of.depth)
            ]
        else:
            norm = of.model == "norm"
            layers = [
                nn.Sequential(nn.Linear(width, width), *([nn.BatchNorm1d(width)] if norm else []), nn.ReLU())
                for _ in range(of.depth)
            ]
        self.body = nn.ModuleList(layers)
        self.head = nn.Linear(width, 10)
        self.spare = nn.Linear(width, width) if of.unused else None

    def forward(self, x: torch.Tensor, again: int = 0) -> torch.Tensor:
        x = self.stem(x)
        for _ in range(again + 1):
            for layer in self.body:
                work(self.python_ms / len(self.body))
                x = layer(x)
        if self.kind == "cnn":
            x = x.mean((2, 3))
        elif self.kind == "transformer":
            x = x.mean(1)
        return self.head(x)


def work(milliseconds: float) -> None:
    """Python that a profiler sees nothing of."""
    end = time.perf_counter() + milliseconds / 1e3
    while time.perf_counter() < end:
        sum(range(200))


class Samples(torch.utils.data.Dataset[Any]):
    def __init__(self, of: Situation, milliseconds: float) -> None:
        self.of, self.milliseconds = of, milliseconds

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        work(self.milliseconds)
        shape = {"cnn": (3, 16, 16)}.get(self.of.model, (self.of.width,))
        if self.of.model == "transformer":
            return torch.arange(index % 50, index % 50 + 32), index % 10
        return torch.full(shape, index % 7 / 7), index % 10


def of_rank(values: ByRank, rank: int, otherwise: Any) -> Any:
    return values.get(str(rank), values.get("*", otherwise))


class Job:
    """One rank's loop."""

    def __init__(self, of: Situation, rank: int) -> None:
        self.of, self.rank = of, rank
        self.device = torch.device("cuda:0" if of.device == "cuda" else "cpu")
        torch.manual_seed(1)
        module = Body(of, of_rank(of.python, rank, 0)).to(self.device)
        self.model = DistributedDataParallel(module, **of.ddp)
        if of.hook:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            self.model.register_comm_hook(None, getattr(default_hooks, of.hook))
        parameters = list(module.parameters())
        self.optimizer: torch.optim.Optimizer = {
            "sgd": lambda: torch.optim.SGD(parameters, lr=1e-3),
            "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-4),
            "loop": lambda: torch.optim.Adam(parameters, lr=1e-4, foreach=False),
        }[of.optimizer]()
        self.loss = nn.CrossEntropyLoss()
        self.pair = None
        if of.groups:
            groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            self.pair = groups[rank // 2]
        size = of_rank(of.samples, rank, of.batch)
        loader = torch.utils.data.DataLoader(
            Samples(of, of_rank(of.loading, rank, 0) / size), batch_size=size, num_workers=of.workers, pin_memory=of.pin
        )
        self.batches = iter(loader)

    def pass_once(self) -> torch.Tensor:
        x, y = next(self.batches)
        x = x.to(self.device, non_blocking=self.of.non_blocking)
        y = y.to(self.device, non_blocking=self.of.non_blocking)
        loss: torch.Tensor = self.loss(self.model(x, of_rank(self.of.passes, self.rank, 0)), y)
        for _ in range(self.of.item):
            loss.item()
        loss.backward()
        return loss

    def step(self, number: int) -> None:
        of = self.of
        self.optimizer.zero_grad()
        for part in range(of.accumulate):
            quiet = of.no_sync and part < of.accumulate - 1
            with self.model.no_sync() if quiet else contextlib.nullcontext():
                loss = self.pass_once()
        self.optimizer.step()
        for _ in range(of.reductions):
            value = loss.detach().clone()
            dist.all_reduce(value)
            value.item()
        if self.pair is not None:
            dist.all_reduce(torch.ones(1000, device=self.device), group=self.pair)
        if of.barrier:
            dist.barrier()
        every, milliseconds = of_rank(of.pause, self.rank, (0, 0))
        if every and number % every == 0:
            work(milliseconds)
        every = of_rank(of.save, self.rank, 0)
        if every and number % every == 0:
            save_checkpoint(self.model, self.optimizer)

    def timed(self, steps: int) -> list[float]:
        """Seconds of each step, no profiler."""
        seconds = []
        for number in range(steps):
            began = time.perf_counter()
            self.step(number)
            if self.of.device == "cuda" and number % 10 == 9:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return seconds


def save_checkpoint(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with tempfile.NamedTemporaryFile() as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def profiled(of: Situation, path: Path) -> Iterator[Any]:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if of.device == "cuda" else [])]
    when = schedule(wait=0, warmup=1, active=of.steps, repeat=1) if of.scheduled else None
    with profile(
        activities=activities,
        schedule=when,
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
        record_shapes=of.shapes,
        with_stack=of.stack,
    ) as running:
        yield running


def main(folder: Path, of: Situation) -> None:
    warnings.simplefilter("ignore")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if of.device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if of.device == "cuda" else "gloo")
    job = Job(of, rank)
    job.timed(of.before)
    if of.device == "cuda":
        torch.cuda.synchronize()
    dist.barrier()
    began = time.perf_counter()
    seconds = job.timed(of.timed)
    if of.device == "cuda":
        torch.cuda.synchronize()
    whole = time.perf_counter() - began
    with profiled(of, folder / f"rank{rank}.json.gz") as running:
        for number in range(of.steps + 1):
            job.step(number)
            if of.scheduled:
                running.step()
    dist.barrier()
    if of.timed:
        told = {"median": statistics.median(seconds), "mean": whole / of.timed, "all": seconds}
        (folder / f"rank{rank}.seconds").write_text(json.dumps({"torch": torch.__version__, "world": world, **told}))
    dist.destroy_process_group()
    os._exit(0) if of.workers else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), Situation(**json.loads(sys.argv[2])))
