"""Traces as text, in Kineto's layout."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

MAIN, RUNLOOP = 100, 107


def event(
    name: str, begin: float, last: float, cat: str = "cpu_op", thread: int = MAIN, args: dict[str, Any] | None = None
) -> dict[str, Any]:
    times = {"ts": begin, "dur": last}
    return {"ph": "X", "cat": cat, "name": name, "pid": MAIN, "tid": thread, **times, "args": args or {}}


def steps(count: int = 3, length: float = 1000.0) -> list[dict[str, Any]]:
    """Return steps of a rank over gloo: loading, forward, backward and optimizer.

    Loading and optimizer take 100 us each; backward has one all-reduce of which 200 us are exposed.
    """
    made = []
    for number in range(count):
        at = 5_000 + number * length
        made += [
            event(f"ProfilerStep#{number + 2}", at, length, "user_annotation"),
            event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 100, "user_annotation"),
            event("DistributedDataParallel.forward", at + 100, 200, "user_annotation"),
            event("aten::linear", at + 100, 200, args={"Input Dims": [[32, 8], [8, 8], [8]]}),
            event("aten::addmm", at + 110, 100),
            event("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", at + 300, 300),
            event("c10d::allreduce_", at + 500, 10),
            event(
                "gloo:all_reduce", at + 520, 280, "user_annotation", RUNLOOP,
                args={"Input type": ["float"], "Input Dims": [[72]]},
            ),
            event("Optimizer.step#SGD.step", at + 800, 100, "user_annotation"),
            event("aten::_foreach_add_", at + 810, 50),
        ]  # fmt: skip
    return made


def written(events: Iterable[dict[str, Any]], rank: int | None = 0, world: int = 2, **header: Any) -> str:
    """The file, with a header and what stands after the events."""
    info = {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": world}} if rank is not None else {}
    head = {"schemaVersion": 1, "record_shapes": 1, **info, "baseTimeNanoseconds": 1790857026000000000, **header}
    lines = "".join(f'\n    "{key}": {json.dumps(value)},' for key, value in head.items())
    body = ",".join(f"\n  {_written(each)}" for each in events)
    return f'\n  {{{lines}\n  "displayTimeUnit": "ms",\n  "traceEvents": [{body}\n  ],\n  "traceName": "r.json"\n}}\n'


def _written(each: dict[str, Any]) -> str:
    """Return ``{``, the fields and the arguments, each indented, and ``}`` on its own line, as Kineto writes it."""
    fields = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in each.items() if key != "args")
    return f'{{\n    {fields},\n    "args": {{\n      {json.dumps(each.get("args", {}))[1:-1]}\n    }}\n  }}'
