"""Files that ``ddp-doctor template NAME`` prints, for operators and engineers to install unchanged.

``@PYTHON@`` in a file stands for the interpreter and ``@DOCTOR@`` for the program that it runs, both quoted for the
shell. ``@GPUS@`` stands for the GPUs that each node must have. A line ``@COMMON@`` stands for the common part of the
SLURM prolog and the SLURM health check.
"""

import shlex
import stat
import sys
from importlib.resources import files
from pathlib import Path

from ddp_doctor.model.error_text import expected, quoted, unknown

#: The use of each template, in one line of a listing.
TEMPLATES = {
    "slurm-prolog": "before each job, by slurmd: drains an unhealthy node",
    "slurm-healthcheck": "every few minutes, by slurmd: drains an unhealthy node",
    "slurm-gate": "in a batch script: ends the job if its nodes are unhealthy",
    "profile": "in a training script: each rank writes a trace, for `trace`",
    "prometheus-rules": "for Prometheus: alerts on unhealthy, degraded or stale nodes",
    "grafana-dashboard": "for Grafana: a dashboard of what --prometheus writes",
}
#: Suffixes of packaged files that are not scripts.
_SUFFIXES = {"profile": "txt", "prometheus-rules": "yml", "grafana-dashboard": "json"}
#: The templates that root runs.
OF_ROOT = ("slurm-prolog", "slurm-healthcheck")
_COMMON = "slurm-common.sh"


def text(
    name: str, python: str = sys.executable, single_file: str | None = None, require_gpus: int | None = None
) -> str:
    """Return template ``name``. It calls the interpreter ``python``, an absolute path that is kept unchanged.

    The interpreter runs ``single_file``, or the installed package. ``require_gpus`` is the number of GPUs that each
    node must have, in templates that root runs. None stands for the number that SLURM gave the job.

    Raises LookupError for an unknown name, and ValueError for a path that a script without PATH cannot call. Both
    messages explain what to do.
    """
    if name not in TEMPLATES:
        raise LookupError(unknown("template", name, TEMPLATES, expected(name, TEMPLATES)))
    if not python.startswith("/") or "\0" in python:
        raise ValueError(f"the path of Python must be absolute: {quoted(python)}")
    template = packaged(f"{name}.{_SUFFIXES.get(name, 'sh')}").replace("@COMMON@\n", packaged(_COMMON))
    gpus = "" if require_gpus is None else str(require_gpus)
    doctor = shlex.quote(single_file) if single_file else "-m ddp_doctor"
    filled_in = template.replace("@PYTHON@", shlex.quote(python)).replace("@DOCTOR@", doctor)
    return filled_in.replace("@GPUS@", gpus)


def others_may_change(single_file: str | None = None, python: str = sys.executable) -> str | None:
    """Return the first file or directory on the path to Python and ddp-doctor that users other than root may change.

    The path is followed as root would: through symbolic links, starting at the root directory.
    """
    for path in map(Path, (python, single_file or __file__)):
        real = path.resolve()
        for part in dict.fromkeys([*reversed(path.parents), path, *reversed(real.parents), real]):
            try:
                found = part.stat()
            except OSError:
                return str(part)
            sticky_folder = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
            if found.st_uid != 0 or (found.st_mode & 0o022 and not sticky_folder):
                return str(part)
    return None


def packaged(file: str) -> str:
    """Return the text of a packaged file, unchanged."""
    return files(__name__).joinpath(file).read_text(encoding="utf-8")
