"""A rank that torchrun started: ``python -m ddp_doctor.ranks.torchrun.worker FOLDER``.

Slow imports wait until this process has asked to die with torchrun.
"""

import importlib.util
import os
import sys
from pathlib import Path

from ddp_doctor.ranks.process import die_with_parent
from ddp_doctor.ranks.torchrun.main import TORCHRUN_VARIABLE


def _bare(package: str) -> None:
    """Skip the imports of a package's ``__init__``: its modules are then imported one by one, on use.

    A forked rank has imported all checks. This rank is a new process, which would spend half a second on them, a dozen
    times as long as its check.
    """
    spec = importlib.util.find_spec(package)
    if spec is not None and package not in sys.modules:
        sys.modules[package] = importlib.util.module_from_spec(spec)


def main() -> None:
    """Find this rank's spec and run it; with several nodes, torchrun numbers the ranks in its own order."""
    die_with_parent(int(os.environ.pop(TORCHRUN_VARIABLE)))
    from ddp_doctor.ranks.spec import WorkerSpec
    from ddp_doctor.ranks.worker.main import launched

    _bare("ddp_doctor.checks")
    path = Path(sys.argv[1]) / f"local{os.environ['LOCAL_RANK']}.spec.json"
    spec = WorkerSpec.from_json(path.read_text())
    launched(spec.model_copy(update={"group_rank": int(os.environ["RANK"])}))


if __name__ == "__main__":
    main()
