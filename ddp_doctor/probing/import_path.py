"""Where a job's Python would load a file of the user's in place of torch or of a module of its own library.

The names of files tell; none is imported or read. A job started with ``-m``, or whose script lies in the working
directory, searches that first; all that get this environment search PYTHONPATH before Python's library::

    PYTHONPATH=/home/ann/lib:      an empty entry is the working directory
    /home/ann/lib/torch.py
"""

import posixpath
from collections.abc import Iterator

from ddp_doctor.facts.node.software import HiddenModule
from ddp_doctor.knowledge import import_path
from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import names_in, target_of


def hidden_modules(ctx: Context) -> tuple[HiddenModule, ...]:
    """Each hidden module once; what stands on PYTHONPATH hides it from more jobs than what stands in the folder."""
    found: dict[str, HiddenModule] = {}
    here = target_of(ctx, "/proc/self/cwd")
    entries = ctx.env.get("PYTHONPATH", "")
    for entry in entries.split(":") if entries else ():
        folder = posixpath.normpath(posixpath.join(here or "", entry))
        if folder.startswith("/"):
            for hidden in _hidden_in(ctx, folder, "PYTHONPATH"):
                found.setdefault(hidden.module, hidden)
    if here is not None and not ctx.env.get("PYTHONSAFEPATH"):
        for hidden in _hidden_in(ctx, here, "working directory"):
            found.setdefault(hidden.module, hidden)
    return tuple(found.values())


def _hidden_in(ctx: Context, folder: str, by: str) -> Iterator[HiddenModule]:
    files = import_path.hidden_modules(names_in(ctx, folder), lambda name: names_in(ctx, f"{folder}/{name}"))
    for module, file in files.items():
        yield HiddenModule.model_validate({"module": module, "file": posixpath.join(folder, file), "by": by})
