"""Real traces of the situations: ``python -m tests.traces.make FOLDER [NAME…] [--turns N]``.

Ranks are forked once torch is imported, so that a case takes two seconds. ``--turns`` also times the job with and
without its plant, in turns, and keeps the seconds of a step: what a plant costs.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.traces.situations import CASES, Options

TIMED = 20
#: Ends with its parent.
HOG = "import os\nos.sched_setaffinity(0, {%d})\nwhile os.getppid() == %d: sum(range(100000))"


def run(folder: Path, options: Options) -> float:
    """A job with these options; its traces and clocks lie in the folder. Mean seconds of a step, 0 where not timed."""
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
    import tests.traces.job as job

    world = options.get("ranks", 2)
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        if "hog" in options:
            os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        job.main(folder, job.Situation(**options))
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def make(out: Path, name: str, turns: int) -> None:
    """The traces of a case, if they are not there, and the times of as many turns."""
    case, folder = CASES[name], out / name
    clock = folder / "times.json"
    times = json.loads(clock.read_text()) if clock.exists() else {"with": [], "without": []}
    if not (folder / "rank0.json.gz").exists():
        times["with"].append(run(folder, {**case.options, "timed": TIMED}))
    for _ in range(turns):
        times["without"].append(run(folder / "timed", {**case.job, "timed": TIMED, "steps": 0}))
        times["with"].append(run(folder / "timed", {**case.options, "timed": TIMED, "steps": 0}))
    clock.write_text(json.dumps(times))
    print(name, {kind: [round(1e3 * t, 1) for t in all_] for kind, all_ in times.items()}, flush=True)


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("out", type=Path)
    given.add_argument("names", nargs="*", default=list(CASES))
    given.add_argument("--turns", type=int, default=0)
    asked = given.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", KINETO_LOG_LEVEL="5")
    for name in asked.names or CASES:
        try:
            make(asked.out, name, asked.turns)
        except RuntimeError as why:
            print(why, flush=True)


if __name__ == "__main__":
    main()
