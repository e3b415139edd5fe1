"""A rank that torchrun started: ``python -m ddp_doctor.launch.torchrun_worker FOLDER``.

Everything that takes time to import waits until this process has asked to die with torchrun.
"""

import os
import sys
from pathlib import Path

from ddp_doctor.launch.process import die_with_parent
from ddp_doctor.launch.torchrun_main import TORCHRUN_VARIABLE


def main() -> None:
    """Find this rank's spec by the RANK that torchrun exported and run it."""
    die_with_parent(int(os.environ.pop(TORCHRUN_VARIABLE)))
    from ddp_doctor.launch.spec import WorkerSpec
    from ddp_doctor.launch.worker import launched

    folder = Path(sys.argv[1])
    launched(WorkerSpec.from_json((folder / f"rank{os.environ['RANK']}.spec.json").read_text()))


if __name__ == "__main__":
    main()
