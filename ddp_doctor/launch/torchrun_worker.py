"""A rank that torchrun started: ``python -m ddp_doctor.launch.torchrun_worker FOLDER``."""

import os
import sys
from pathlib import Path

from ddp_doctor.launch.spec import WorkerSpec
from ddp_doctor.launch.worker import launched


def main() -> None:
    """Find this rank's spec by the RANK that torchrun exported and run it."""
    folder = Path(sys.argv[1])
    launched(WorkerSpec.from_json((folder / f"rank{os.environ['RANK']}.spec.json").read_text()))


if __name__ == "__main__":
    main()
