"""Predicted against measured memory: ``python -m tests.fit.evaluate [MODEL …] [--ranks N]`` prints the table.

Measured is the highest "Total Allocated" of the memory events of torch's profiler, on real ranks on the CPU, from
before the model is made until three steps have ended; beside it what the process's resident memory grew by.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
from bisect import bisect
from pathlib import Path
from typing import Any, NamedTuple

from ddp_doctor.facts.ddp.fit import Estimate, Precision

MODELS = ("mlp", "cnn", "encoder", "llama", "tied", "lora")
STRATEGIES = ("ddp", "ddp-bucket-view", "zero2", "zero3")
MIB = 2**20
_SPAWN = multiprocessing.get_context("spawn")


class Case(NamedTuple):
    """A model under one strategy."""

    model: str
    strategy: str
    checkpointing: bool = False
    precision: Precision = "fp32"
    ranks: int = 2

    @property
    def factory(self) -> str:
        return f"tests.models.fit:{self.model}"


class Outcome(NamedTuple):
    """Bytes."""

    case: Case
    predicted: int
    measured: int
    resident: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def measured(case: Case, rank: int, folder: str) -> tuple[int, int]:
    """The peak of this rank, and what its resident memory grew by, in bytes."""
    import psutil
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore
    from torch.profiler import ProfilerActivity, profile

    from ddp_doctor.probing.fit import subject
    from ddp_doctor.probing.fit.strategies import wrap
    from ddp_doctor.probing.user_model import user_code
    from ddp_doctor.probing.user_model.batches import Batch

    torch.set_num_threads(1)
    store = FileStore(f"{folder}/store", case.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=case.ranks)
    factory = user_code.find(case.factory)
    before = psutil.Process().memory_info().rss
    highest = before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loaded = user_code.made(case.factory, factory)
        form = user_code.form_of(loaded)
        units = [module for _, module in subject.units_of(loaded.model, loaded.units)]
        model, optimizer = wrap(
            loaded.model,
            case.strategy,
            units=units,
            checkpointing=case.checkpointing,
            precision=case.precision,
            optimizer=loaded.optimizer or torch.optim.AdamW,
            ranks_per_node=case.ranks,
            options=loaded.options,
        )
        assert loaded.make_batch is not None
        for step in range(3):
            batch = Batch(loaded.make_batch(step), form).changed(lambda leaf: leaf)
            highest = max(highest, _step(model, optimizer, batch))
    trace = Path(folder, f"{rank}.json")
    profiler.export_chrome_trace(str(trace))
    highest_allocated = allocated(json.loads(trace.read_text())["traceEvents"])
    dist.destroy_process_group()
    return highest_allocated, highest - before


def allocated(events: list[dict[str, Any]]) -> int:
    """The most bytes that were there at one time, of what was made since the profiler started.

    It is "Total Allocated" but for gloo's staging buffers: torch counts where the profiler runs on the thread, so one
    that gloo's own thread frees is never subtracted there. Here it ends with its collective, for which a rank waits.
    """
    memory = sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"])
    calls = _spans(events, "c10d::")
    flattened = _spans(events, "aten::flatten_dense_tensors")  # what DDP's constructor hands to the next collective
    there: dict[int, int] = {}
    staged: dict[int, float] = {}  # address to the end of its call
    highest = 0
    for event in memory:
        at, address, size = event["ts"], event["args"]["Addr"], event["args"]["Bytes"]
        for ended in [address for address, end in staged.items() if end < at]:
            there.pop(ended, None)
            del staged[ended]
        if size < 0:
            there.pop(address, None)
            staged.pop(address, None)
            continue
        there[address] = size
        after = bisect(calls, (at, float("inf")))
        if any(begin <= at <= end for begin, end in calls[max(after - 1, 0) : after]):
            staged[address] = calls[after - 1][1]
        elif any(begin <= at <= end for begin, end in flattened) and after < len(calls):
            staged[address] = calls[after][1]
        highest = max(highest, sum(there.values()))
    return highest


def _spans(events: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    named = (event for event in events if str(event["name"]).startswith(name) and "dur" in event)
    return sorted((event["ts"], event["ts"] + event["dur"]) for event in named)


def _step(model: Any, optimizer: Any, batch: Any) -> int:
    import psutil

    output = batch.forward(model)
    loss = batch.loss(output)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return int(psutil.Process().memory_info().rss)


def _rank(case: Case, rank: int, folder: str) -> None:
    Path(folder, f"{rank}.peak").write_text(json.dumps(measured(case, rank, folder)))
    os._exit(0)


def _predict(case: Case, folder: str) -> None:
    from ddp_doctor.probing.fit.estimate import estimate

    fact = estimate(case.factory, ranks=case.ranks, ranks_per_node=case.ranks, precision=case.precision, device="cpu")
    Path(folder, "fact.json").write_text(fact.model_dump_json())


def _run(target: Any, arguments: list[tuple[Any, ...]]) -> None:
    processes = [_SPAWN.Process(target=target, args=given) for given in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
        if process.exitcode is None:
            process.kill()
        assert process.exitcode == 0, arguments


def evaluate(cases: list[Case]) -> list[Outcome]:
    """All of one model and number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        _run(_predict, [(cases[0], folder)])
        fact = json.loads(Path(folder, "fact.json").read_text())
        assert not fact["trouble"], fact["trouble"]
    found = {(row["strategy"], row["checkpointing"]): _peak(row) for row in fact["estimates"]}
    outcomes = []
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            _run(_rank, [(case, rank, folder) for rank in range(case.ranks)])
            peaks = [json.loads(Path(folder, f"{rank}.peak").read_text()) for rank in range(case.ranks)]
        peak, resident = min(peaks)  # where gloo's thread is the last to let go of a buffer, its end is not seen
        outcomes.append(Outcome(case, found[case.strategy, case.checkpointing], peak, resident))
    return outcomes


def _peak(row: dict[str, Any]) -> int:
    return Estimate.model_validate(row).peak_bytes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--checkpointing", action="store_true")
    given = parser.parse_args()
    outcomes: list[Outcome] = []
    print("| model | strategy | predicted MiB | measured MiB | error | resident MiB |")
    print("|---|---|---|---|---|---|")
    for model in given.models:
        outcomes += evaluate(
            [
                Case(model, strategy, given.checkpointing, given.precision, given.ranks)
                for strategy in given.strategies.split(",")
            ]
        )
        for case, predicted, measured_bytes, resident in outcomes[-len(given.strategies.split(",")) :]:
            error = predicted / measured_bytes - 1
            print(
                f"| {case.model} | {case.strategy} | {predicted / MIB:.1f} | {measured_bytes / MIB:.1f} |"
                f" {error:+.1%} | {resident / MIB:.0f} |",
                flush=True,
            )
    errors = [abs(outcome.error) for outcome in outcomes]
    print(f"\nmedian {statistics.median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
