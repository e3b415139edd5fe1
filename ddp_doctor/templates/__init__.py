"""Files that ``ddp-doctor template NAME`` prints, ready to be put where an operator or an engineer wants them.

``@PYTHON@`` in a file stands for the interpreter to call and ``@DOCTOR@`` for what it is to run, both quoted for the
shell; ``@GPUS@`` for the GPUs that each node must have; a line ``@COMMON@`` for what the SLURM prolog and the SLURM
health check share.
"""

import shlex
import stat
import sys
from importlib.resources import files
from pathlib import Path

from ddp_doctor.model.error_text import expected, quoted, unknown

#: What each does, in one line of a listing.
TEMPLATES = {
    "slurm-prolog": "before each job, by slurmd: drains an unhealthy node",
    "slurm-healthcheck": "every few minutes, by slurmd: drains an unhealthy node",
    "slurm-gate": "in a batch script: ends the job if its nodes are unhealthy",
    "profile": "in a training script: each rank writes a trace, for `trace`",
    "prometheus-rules": "for Prometheus: alerts on unhealthy, degraded or stale nodes",
    "grafana-dashboard": "for Grafana: a dashboard of what --prometheus writes",
}
#: How the packaged files end that are no scripts.
_SUFFIXES = {"profile": "txt", "prometheus-rules": "yml", "grafana-dashboard": "json"}
#: Those that root runs.
OF_ROOT = ("slurm-prolog", "slurm-healthcheck")
_COMMON = "slurm-common.sh"


def text(
    name: str, python: str = sys.executable, single_file: str | None = None, require_gpus: int | None = None
) -> str:
    """Template ``name``, calling the interpreter ``python``, an absolute path that is kept as it is.

    It is to run ``single_file``, or the package that is installed there.
    ``require_gpus``: how many GPUs each node must have, in those that root runs; None is what SLURM gave the job.

    Raises LookupError for an unknown name, ValueError for a path that a script without PATH cannot call;
    both messages say what to do.
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
    """The first file or folder on the way to Python and the doctor that others than root may change.

    Followed as root would: through symbolic links, from the root folder on.
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
    """The text of a packaged file, as it is."""
    return files(__name__).joinpath(file).read_text(encoding="utf-8")
