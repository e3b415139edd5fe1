"""A small DDP job that profiles itself, with one injected situation: ``python job.py DIR OPTIONS``, once per rank.

It needs torch but not ddp-doctor. Steps are timed twice: without the profiler (``seconds``: the cost of the
fault), then with it (the trace). Every delay is work; nothing sleeps.
"""

import contextlib
import gc
import json
import os
import random
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
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint

#: Values a rank: ``{"1": 2}`` for one rank, ``{"*": 2}`` for all.
ByRank = dict[str, Any]


@dataclass(frozen=True)
class Situation:
    """The behavior of a job; the defaults are a healthy one."""

    device: str = "cpu"
    ranks: int = 2
    model: str = "mlp"  # mlp, norm (with buffers), cnn, transformer
    width: int = 512
    depth: int = 6
    batch: int = 64
    timed: int = 0  # steps without the profiler
    steps: int = 4  # steps in the trace; 0 for no trace
    before: int = 3  # steps before either
    ddp: dict[str, Any] = field(default_factory=dict)
    hook: str = ""
    optimizer: str = "sgd"  # sgd, adamw, fused, loop (one tensor after the other), zero
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
    # Additional faults of the cases below; see situations.py.
    micro: ByRank = field(default_factory=dict)  # passes a step of one rank, in place of ``accumulate``
    augment: ByRank = field(default_factory=dict)  # tensor operators on each sample, in the loader
    workers_of: ByRank = field(default_factory=dict)  # in place of ``workers``
    lengths: bool = False  # each batch of each rank has sequences of another length
    validate: ByRank = field(default_factory=dict)  # every Nth step, so many passes without gradients
    average: ByRank = field(default_factory=dict)  # a moving average of the weights, so often a step
    recompute: ByRank = field(default_factory=dict)  # repeat the forward in backward
    anomaly: ByRank = field(default_factory=dict)  # torch.autograd.set_detect_anomaly
    frozen: int = 0  # layers that are not trained
    clip: bool = False  # the norm of the gradients, read with .item()
    twice: bool = False  # two passes and one backward
    gather: bool = False  # the loss takes the outputs of all ranks
    local: int = 0  # ranks synchronize every Nth step only
    manual: bool = False  # no DDP: one all_reduce of everything after backward
    rival: bool = False  # a second model with a second optimizer
    objects: bool = False  # metrics as Python objects from all ranks
    collect: ByRank = field(default_factory=dict)  # every Nth step, gc.collect() over many objects
    hog: tuple[int, ...] = ()  # ranks whose core a busy process shares (make.py starts it)


class Body(nn.Module):
    """Layers of one kind with a head; ``again`` runs them once more."""

    def __init__(self, of: Situation, python_ms: float, recompute: bool) -> None:
        super().__init__()
        self.kind, self.python_ms, self.recompute, width = of.model, python_ms, recompute, of.width
        self.stem: nn.Module = nn.Identity()
        layers: list[nn.Module]
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
        for layer in self.body[: of.frozen]:
            layer.requires_grad_(False)

    def forward(self, x: torch.Tensor, again: int = 0) -> torch.Tensor:
        x = self.stem(x)
        for _ in range(again + 1):
            for layer in self.body:
                work(self.python_ms / len(self.body))
                x = checkpoint(layer, x, use_reentrant=False) if self.recompute and self.training else layer(x)
        if self.kind == "cnn":
            x = x.mean((2, 3))
        elif self.kind == "transformer":
            x = x.mean(1)
        out: torch.Tensor = self.head(x)
        return out


def work(milliseconds: float) -> None:
    """Run Python code that a profiler does not see."""
    end = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < end:
        sum(range(200))


class Samples(torch.utils.data.Dataset[Any]):
    def __init__(self, of: Situation, milliseconds: float, operators: int, rank: int) -> None:
        self.of, self.milliseconds, self.operators, self.rank = of, milliseconds, operators, rank

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        work(self.milliseconds)
        shape = {"cnn": (3, 16, 16)}.get(self.of.model, (self.of.width,))
        if self.of.model == "transformer":
            batch = index // self.of.batch  # all ranks' lengths differ, and each rank's from batch to batch
            length = random.Random(batch * 31 + self.rank).randrange(8, 57) if self.of.lengths else 32
            return torch.arange(index % 50, index % 50 + length), index % 10
        sample = torch.full(shape, index % 7 / 7)
        for _ in range(self.operators):
            sample = sample.roll(1, -1).clamp(0, 1)
        return sample, index % 10


def of_rank(values: ByRank, rank: int, otherwise: Any) -> Any:
    return values.get(str(rank), values.get("*", otherwise))


class Job:
    def __init__(self, of: Situation, rank: int) -> None:
        self.of, self.rank = of, rank
        self.device = torch.device("cuda:0" if of.device == "cuda" else "cpu")
        torch.manual_seed(1)
        torch.autograd.set_detect_anomaly(of_rank(of.anomaly, rank, False))
        self.model, self.optimizer = self.trained(of)
        self.rival = self.trained(Situation(model=of.model, width=of.width, depth=of.depth)) if of.rival else None
        self.averages = AveragedModel(self.model.module) if of.average else None
        self.loss = nn.CrossEntropyLoss()
        self.heap = [{"number": [n]} for n in range(200_000)] if of_rank(of.collect, rank, 0) else []
        self.pair = None
        if of.groups:
            groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            self.pair = groups[rank // 2]
        size = of_rank(of.samples, rank, of.batch)
        samples = Samples(of, of_rank(of.loading, rank, 0) / size, of_rank(of.augment, rank, 0), rank)
        workers = of_rank(of.workers_of, rank, of.workers)
        loader = torch.utils.data.DataLoader(samples, batch_size=size, num_workers=workers, pin_memory=of.pin)
        self.batches = iter(loader)

    def trained(self, of: Situation) -> tuple[Any, torch.optim.Optimizer]:
        python_ms, recompute = of_rank(of.python, self.rank, 0), of_rank(of.recompute, self.rank, False)
        module = Body(of, python_ms, recompute).to(self.device)
        model: Any = Alone(module) if of.manual else DistributedDataParallel(module, **of.ddp)
        if of.hook:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

            model.register_comm_hook(None, own_hook if of.hook == "own" else getattr(default_hooks, of.hook))
        parameters = [p for p in module.parameters() if p.requires_grad]
        optimizers: dict[str, Any] = {
            "sgd": lambda: torch.optim.SGD(parameters, lr=1e-3),
            "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-4),
            "fused": lambda: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
            "loop": lambda: torch.optim.Adam(parameters, lr=1e-4, foreach=False),
            "zero": lambda: ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-4),
        }
        return model, optimizers[of.optimizer]()

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = next(self.batches)
        x = x.to(self.device, non_blocking=self.of.non_blocking)
        return x, y.to(self.device, non_blocking=self.of.non_blocking)

    def pass_once(self, model: nn.Module) -> torch.Tensor:
        x, y = self.batch()
        again = of_rank(self.of.passes, self.rank, 0)
        outputs = model(x, again)
        if self.of.twice:
            outputs = outputs + model(x.flip(0), again)
        if self.of.gather:
            everyone = [torch.empty_like(outputs) for _ in range(self.of.ranks)]
            dist.all_gather(everyone, outputs.detach())
            outputs = outputs - torch.stack(everyone).mean()
        loss: torch.Tensor = self.loss(outputs, y)
        for _ in range(self.of.item):
            loss.item()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def step(self, number: int) -> None:
        of = self.of
        self.optimizer.zero_grad()
        passes, loss = of_rank(of.micro, self.rank, of.accumulate), torch.zeros(())
        for part in range(passes):
            quiet = (of.no_sync and part < passes - 1) or (of.local and number % of.local)
            with self.model.no_sync() if quiet else contextlib.nullcontext():
                loss = self.pass_once(self.model)
        if of.manual:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            flat, sizes = torch.cat([g.flatten() for g in gradients]), [g.numel() for g in gradients]
            dist.all_reduce(flat)
            torch._foreach_copy_(
                gradients, [f.view_as(g) for f, g in zip(torch.split(flat, sizes), gradients, strict=True)]
            )
        if of.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
        self.optimizer.step()
        if self.rival:
            model, optimizer = self.rival
            optimizer.zero_grad()
            self.pass_once(model)
            optimizer.step()
        self.communicate(loss)
        self.keep_house(number)

    def communicate(self, loss: torch.Tensor) -> None:
        for _ in range(self.of.reductions):
            value = loss.detach().clone()
            dist.all_reduce(value)
            value.item()
        if self.of.objects:
            dist.all_gather_object([None] * self.of.ranks, {"loss": float(loss)})
        if self.pair is not None:
            dist.all_reduce(torch.ones(1000, device=self.device), group=self.pair)
        if self.of.barrier:
            dist.barrier()

    def keep_house(self, number: int) -> None:
        of = self.of
        every, milliseconds = of_rank(of.pause, self.rank, (0, 0))
        if every and number % every == 0:
            work(milliseconds)
        every = of_rank(of.save, self.rank, 0)
        if every and number % every == 0:
            save_checkpoint(self.model, self.optimizer)
        every = of_rank(of.collect, self.rank, 0)
        if every and number % every == 0:
            gc.collect()
        if self.averages:
            for _ in range(of_rank(of.average, self.rank, 0)):
                self.averages.update_parameters(self.model.module)
        every, passes = of_rank(of.validate, self.rank, (0, 0))
        if every and number % every == 0:
            with torch.no_grad():
                for _ in range(passes):
                    self.model.module(self.batch()[0])

    def timed(self, steps: int) -> list[float]:
        seconds = []
        for number in range(steps):
            began = time.perf_counter()
            self.step(number)
            if self.of.device == "cuda" and number % 10 == 9:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        return seconds


class Alone(nn.Module):
    """A model without DDP, wrapped as if with it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


def own_hook(state: Any, bucket: Any) -> Any:
    """Send gradients as halves, as users' hooks do."""
    half = bucket.buffer().half().div_(dist.get_world_size())

    def back(done: Any) -> Any:
        return bucket.buffer().copy_(done.value()[0])

    return dist.all_reduce(half, async_op=True).get_future().then(back)


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
    if of.steps:
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
    os._exit(0)  # gloo's destructor or workers of a loader may wait forever


if __name__ == "__main__":
    main(Path(sys.argv[1]), Situation(**json.loads(sys.argv[2])))
