"""The parts of a trace compared with HTA's and TraceLens' numbers over the same time span.

``python -m tests.features.trace.anchors FILE… [--hta PYTHON] [--tracelens PYTHON]``: interpreters that have HTA 0.5.0
with pandas below 3, and AMD's TraceLens (which is not the package of that name on PyPI).
"""

import argparse
import gzip
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ddp_doctor.features.trace.reading.collect import Collected
from ddp_doctor.features.trace.reading.events import EventStream
from ddp_doctor.features.trace.reading.rank import _Rank

HTA = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
seen = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="", include_last_profiler_step=True)
row = seen.get_temporal_breakdown(visualize=False).iloc[0]
names = {"span": "kernel_time", "compute": "compute_time", "rest": "non_compute_time", "idle": "idle_time"}
told = {name: row[theirs + "(us)"] for name, theirs in names.items()}
try:
    told["overlap"] = seen.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
except Exception:
    pass
print(json.dumps({k: float(v) for k, v in told.items()}))
"""
TRACELENS = """
import gzip, json, sys
from TraceLens.TreePerf.gpu_event_analyser import GPUEventAnalyser
raw = open(sys.argv[1], "rb").read()
trace = json.loads(gzip.decompress(raw) if raw[:2] == bytes([31, 139]) else raw)
events = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
for number, event in enumerate(events):
    event["UID"] = number
found = GPUEventAnalyser(events).compute_metrics()
names = {"span": "total", "compute": "computation", "exposed": "exposed_comm", "idle": "idle"}
told = {name: found[theirs + "_time"] for name, theirs in {**names, "copies": "exposed_memcpy"}.items()}
if found["total_comm_time"]:
    told["overlap"] = 100 * (1 - found["exposed_comm_time"] / found["total_comm_time"])
print(json.dumps(told))
"""


def ours(path: Path) -> dict[str, float]:
    """Return the parts of the entire trace, from the first to the last moment with work on the GPU."""
    raw = path.read_bytes()
    stream, found = EventStream([gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw]), Collected()
    for piece in stream.pieces():
        found.take(piece)
    parts = _Rank(path.name, found, stream).on_device
    names = ("compute", "optimizer", "exposed", "other")
    spans = [span for name in names for span in parts[name]]
    if not spans:
        return {}
    begin, end = min(span[0] for span in spans), max(span[1] for span in spans)
    total = {name: parts[name].within(begin, end).total for name in (*names, "hidden")}
    flying = total["exposed"] + total["hidden"]
    busy = sum(total[name] for name in names)
    return {
        "span": end - begin,
        "compute": total["compute"] + total["optimizer"],
        "exposed": total["exposed"],
        "copies": total["other"],
        "rest": total["exposed"] + total["other"],
        "idle": end - begin - busy,
        "overlap": 100 * total["hidden"] / (flying or 1),
    }


def theirs(python: str, script: str, path: Path) -> dict[str, float]:
    ran = subprocess.run([python, "-c", script, str(path)], capture_output=True, text=True, check=False)
    lines = ran.stdout.splitlines()
    if ran.returncode or not lines:
        print(f"{path}: {(ran.stderr.splitlines() or ['nothing'])[-1]}")
        return {}
    return dict(json.loads(lines[-1]))


def rows(path: Path, others: dict[str, tuple[str, str]]) -> Iterator[str]:
    us = ours(path)
    names = ("span", "compute", "exposed", "copies", "rest", "idle", "overlap")
    for who, told in (("doctor", us), *((who, theirs(*how, path)) for who, how in others.items())):
        cells = []
        for name in names:
            value, own = told.get(name), us.get(name)
            cell = "" if value is None else f"{value:,.0f}" if name != "overlap" else f"{value:.1f} %"
            is_other = who != "doctor" and name != "overlap"
            apart = value - own if is_other and value is not None and own is not None else 0.0
            cells.append(cell + (f" ({apart:+,.0f})" if abs(apart) >= 0.5 else ""))
        yield f"| {path.parent.name}/{path.name} | {who} | " + " | ".join(cells) + " |"


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("files", nargs="+", type=Path)
    given.add_argument("--hta")
    given.add_argument("--tracelens")
    asked = given.parse_args()
    others = {"HTA": (asked.hta, HTA), "TraceLens": (asked.tracelens, TRACELENS)}
    print("| trace | by | span | compute | exposed | copies | exposed + copies | idle | hidden of communication |")
    print("|---|---|---|---|---|---|---|---|---|")
    for path in asked.files:
        for row in rows(path, {who: how for who, how in others.items() if how[0]}):
            print(row, flush=True)


if __name__ == "__main__":
    main()
