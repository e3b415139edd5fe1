"""Real traces of the situations: ``python -m tests.features.trace.make FOLDER [NAME…] [--tries N] [--turns N]``.

Ranks are forked after torch is imported, so that a case takes two seconds. ``--tries`` repeats a case while other load
on the machine hides the injected fault or adds faults. ``--turns`` also times the job with and without its fault,
alternately, and keeps the seconds of a step: the cost of the fault.
"""

import argparse
import contextlib
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.features.trace.situations import CASES, Case, Options

TIMED = 20
#: Ends with its parent.
HOG = "import os\nos.sched_setaffinity(0, {%d})\nwhile os.getppid() == %d: sum(range(100000))"


def run(folder: Path, options: Options) -> float:
    """Run a job and keep its traces and clocks in the directory. Returns mean seconds of a step, 0 if not timed."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    with hogs(options.get("hog", ())):
        ranks = [forked(folder, options, rank, port) for rank in range(options.get("ranks", 2))]
        ended = [os.waitpid(pid, 0)[1] for pid in ranks]
    if any(ended):
        raise RuntimeError(f"{folder.name}: a rank failed")
    told = [json.loads(path.read_text()) for path in folder.glob("rank*.seconds")]
    return max((one["mean"] for one in told), default=0.0)


@contextlib.contextmanager
def hogs(cores: Any) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", HOG % (core % os.cpu_count(), os.getpid())]) for core in cores]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def forked(folder: Path, options: Options, rank: int, port: int) -> int:
    import tests.features.trace.job as job

    world = options.get("ranks", 2)
    pid = os.fork()
    if pid:
        return pid
    signal.alarm(120)
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)  # Kineto's own words
        os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})  # otherwise one rank is late because of its CPU
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        job.main(folder, job.Situation(**options))  # ends the process
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def lateness(folder: Path) -> dict[int, float] | None:
    """Return the delay of each rank's calls after the last other rank, as a share of the step; None if unknown.

    All ranks share one clock here. The latest call of a pass counts, because later calls inherit its delay.
    """
    calls: dict[int, list[list[tuple[str, float]]]] = {}
    lasted = 0.0
    for path in folder.glob("rank*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        base = trace["baseTimeNanoseconds"] / 1e3
        events = sorted((e for e in trace["traceEvents"] if e.get("ph") == "X"), key=lambda e: float(e["ts"]))
        steps = [e["ts"] for e in events if e["name"].startswith("ProfilerStep")][1:]
        first, last = steps[0] if steps else events[0]["ts"], float(events[-1]["ts"])
        lasted += last - first
        passes = [e["ts"] for e in events if e["name"] == "DistributedDataParallel.forward" and e["ts"] > first]
        made = [e for e in events if e["name"].startswith("c10d::") and e.get("cat") == "cpu_op"]
        calls[trace["distributedInfo"]["rank"]] = [
            [(e["name"], base + e["ts"]) for e in made if begin <= e["ts"] < end]
            for begin, end in pairwise([first, *passes[1:], last])
        ]
    late = dict.fromkeys(calls, 0.0)
    for one in zip(*calls.values(), strict=False):
        if len({tuple(name for name, _ in of) for of in one}) > 1:
            return None
        worst = dict.fromkeys(calls, 0.0)
        for call in zip(*one, strict=True):
            order = sorted(zip((at for _, at in call), calls, strict=True))
            worst[order[-1][1]] = max(worst[order[-1][1]], order[-1][0] - order[-2][0])
        for rank, most in worst.items():
            late[rank] += most
    return {rank: lost / lasted * len(calls) for rank, lost in late.items()}


def doubt(folder: Path, case: Case) -> str:
    """Return why these traces do not show only the truth of the case; empty if they do."""
    late = lateness(folder)
    if late is None:
        return ""
    told = " ".join(f"{rank}:{share:.0%}" for rank, share in sorted(late.items()))
    blamed = {int(truth.rpartition("@")[2]) for truth in (*case.truth, *case.may) if "@" in truth}
    if any(
        share > 0.07 + 0.3 * max(late.values()) * bool(blamed) for rank, share in late.items() if rank not in blamed
    ):
        return f"others are late: {told}"
    wanted = [truth for truth in case.truth if "@" in truth]
    if wanted and any(late[int(truth.rpartition("@")[2])] < 0.15 for truth in wanted):
        return f"the culprit is not late enough: {told}"
    return ""


def make(out: Path, name: str, tries: int, turns: int) -> None:
    """Make the traces of a case if missing, and the times of this number of turns."""
    case, folder = CASES[name], out / name
    clock = folder / "times.json"
    times: dict[str, Any] = {"with": [], "without": [], "doubt": ""}
    if clock.exists():
        times = json.loads(clock.read_text())
    for _ in range(tries):
        if not times["with"] or times["doubt"]:
            times["with"].append(run(folder, {**case.options, "timed": TIMED}))
            times["doubt"] = "" if case.may == ("*",) else doubt(folder, case)
    for _ in range(turns):
        times["without"].append(run(folder / "timed", {**case.job, "timed": TIMED, "steps": 0}))
        times["with"].append(run(folder / "timed", {**case.options, "timed": TIMED, "steps": 0}))
    clock.write_text(json.dumps(times))
    told = " ".join(f"{kind} {[round(1e3 * t, 1) for t in times[kind]]}" for kind in ("with", "without"))
    print(name, told, times["doubt"], flush=True)


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("out", type=Path)
    given.add_argument("names", nargs="*", default=list(CASES))
    given.add_argument("--tries", type=int, default=1)
    given.add_argument("--turns", type=int, default=0)
    asked = given.parse_intermixed_args()
    os.environ.update(OMP_NUM_THREADS="1", KINETO_LOG_LEVEL="5")
    for name in asked.names or CASES:
        try:
            make(asked.out, name, asked.tries, asked.turns)
        except RuntimeError as why:
            print(why, flush=True)


if __name__ == "__main__":
    main()
