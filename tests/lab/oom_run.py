"""Run by test_oom.py inside a memory cgroup: two ranks; rank 1 uses more memory than available."""

import os
import sys
from pathlib import Path

from ddp_doctor.app.running import run
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Options
from ddp_doctor.starters.request import RunRequest
from tests.launch.misbehaving import BAD, Done, well_behaved
from tests.waiting import LIMIT_S


def takes_too_much(ctx: RankContext) -> Done:
    hoard = []
    while ctx.rank == BAD:
        hoard.append(bytearray(os.urandom(1 << 20)) * 16)
    return well_behaved(ctx)


def main() -> None:
    Path(sys.argv[1], "cgroup.procs").write_text("0")
    check = Check("scenario", "A scenario", Where.RANK, takes_too_much, (), deadline_s=LIMIT_S)
    request = RunRequest(Options(), dict(os.environ), nproc_per_node=2)
    print(run(request, (check,)).report.model_dump_json())


if __name__ == "__main__":
    from tests.lab import oom_run  # noqa: PLW0406 - workers import the probe by this name

    oom_run.main()
