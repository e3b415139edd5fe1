"""A rank that torchrun started: ``python -m ddp_doctor.launch.torchrun_worker FOLDER``.

Everything that takes time to import waits until this process has asked to die with torchrun.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from ddp_doctor.launch.process import die_with_parent
from ddp_doctor.launch.torchrun_main import TORCHRUN_VARIABLE


def main() -> None:
    """Find this rank's spec and run it; on several nodes torchrun numbers the ranks in an order of its own."""
    die_with_parent(int(os.environ.pop(TORCHRUN_VARIABLE)))
    from ddp_doctor.launch.spec import WorkerSpec
    from ddp_doctor.launch.worker import launched

    path = Path(sys.argv[1]) / f"local{os.environ['LOCAL_RANK']}.spec.json"
    spec = WorkerSpec.from_json(path.read_text())
    launched(replace(spec, group_rank=int(os.environ["RANK"])))


if __name__ == "__main__":
    main()
