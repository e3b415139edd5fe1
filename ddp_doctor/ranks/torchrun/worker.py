"""A rank that torchrun started: ``python -m ddp_doctor.ranks.torchrun.worker FOLDER``.

Everything that takes time to import waits until this process has asked to die with torchrun.
"""

import importlib.util
import os
import sys
from pathlib import Path

from ddp_doctor.ranks.process import die_with_parent
from ddp_doctor.ranks.torchrun.main import TORCHRUN_VARIABLE


def _bare(package: str) -> None:
    """Skip what a package imports by itself: its modules are then imported one by one, where they are used.

    A forked rank has all checks imported. This rank is a new process, which would spend half a second on them, a
    dozen times what its own check takes.
    """
    spec = importlib.util.find_spec(package)
    if spec is not None and package not in sys.modules:
        sys.modules[package] = importlib.util.module_from_spec(spec)


def main() -> None:
    """Find this rank's spec and run it; on several nodes torchrun numbers the ranks in an order of its own."""
    die_with_parent(int(os.environ.pop(TORCHRUN_VARIABLE)))
    from ddp_doctor.ranks.spec import WorkerSpec
    from ddp_doctor.ranks.worker.main import launched

    _bare("ddp_doctor.checks")
    path = Path(sys.argv[1]) / f"local{os.environ['LOCAL_RANK']}.spec.json"
    spec = WorkerSpec.from_json(path.read_text())
    launched(spec.model_copy(update={"group_rank": int(os.environ["RANK"])}))


if __name__ == "__main__":
    main()
