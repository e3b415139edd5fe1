"""Traces of few events, written as Kineto writes them: steps of 10 ms with an all-reduce that ends at 8 ms."""

import json
from pathlib import Path
from typing import Any

MS = 1_000.0


def trace(rank: int | None = 0, *, world: int = 2, steps: int = 4, late_ms: float = 0.0, begin_ms: float = 0.0) -> str:
    """The text of one rank's file, which comes ``late_ms`` later to its all-reduces than at 3 ms."""
    events: list[dict[str, Any]] = []
    for number in range(steps):
        at = (begin_ms + 10 * number) * MS
        reduces = at + (3 + late_ms) * MS
        events += [
            _event("user_annotation", f"ProfilerStep#{number}", at, 10 * MS - 1),
            _event("user_annotation", "DistributedDataParallel.forward", at + 10, 1 * MS),
            _event("cpu_op", "aten::linear", at + 20, 0.9 * MS),
            _event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + MS, (2 + late_ms) * MS - 100),
            _event("cpu_op", "c10d::allreduce_", reduces - 60, 50, {"Input Dims": [[1000]]}),
            _event("user_annotation", "gloo:all_reduce", reduces, at + 8 * MS - reduces, {"Input Dims": [[1000]]}, 2),
            _event("user_annotation", "Optimizer.step#SGD.step", at + 8 * MS, MS),
        ]
    head: dict[str, Any] = {"schemaVersion": 1, "record_shapes": 1}
    if rank is not None:
        head["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": world}
    lines = ",\n".join(f"  {json.dumps(event, indent=2)[:-2]}\n  }}" for event in events)
    return f'{json.dumps(head)[:-1]},\n "baseTimeNanoseconds": 0,\n "traceEvents": [\n{lines}\n]}}\n'


def folder(at: Path, ranks: int = 2, **given: Any) -> Path:
    """A folder with a file for each rank."""
    at.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        (at / f"rank{rank}.json").write_text(trace(rank, world=ranks, **given))
    return at


def _event(
    category: str, name: str, ts: float, dur: float, args: dict[str, Any] | None = None, tid: int = 1
) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args or {}}
