"""Files that ``ddp-doctor template NAME`` prints, ready to be put where an operator wants them.

``@PYTHON@`` in a file stands for the interpreter to call and ``@DOCTOR@`` for what it is to run, both quoted for the
shell; a line ``@COMMON@`` for what the SLURM prolog and the SLURM health check share.
"""

import shlex
import sys
from importlib.resources import files

#: Each is packaged as NAME.sh.
_NAMES = ("slurm-prolog", "slurm-healthcheck", "slurm-gate")
_COMMON = "slurm-common.sh"


def names() -> tuple[str, ...]:
    """The templates there are."""
    return _NAMES


def text(name: str, python: str = sys.executable, single_file: str | None = None) -> str:
    """Template ``name``, calling the interpreter ``python``, an absolute path that is kept as it is.

    It is to run ``single_file``, or the package that is installed there.

    Raises LookupError for an unknown name, ValueError for a path that a script without PATH cannot call;
    both messages say what to do.
    """
    if name not in _NAMES:
        raise LookupError(f"there is no template {name!r}; there are: {', '.join(names())}")
    if not python.startswith("/") or "\0" in python:
        raise ValueError(f"the Python to call must be an absolute path, not {python!r}")
    template = _packaged(f"{name}.sh").replace("@COMMON@\n", _packaged(_COMMON))
    doctor = shlex.quote(single_file) if single_file else "-m ddp_doctor"
    return template.replace("@PYTHON@", shlex.quote(python)).replace("@DOCTOR@", doctor)


def _packaged(file: str) -> str:
    return files(__name__).joinpath(file).read_text(encoding="utf-8")
