"""DD211, DD212: files of the user's that stand in the place of torch, or of modules of Python's library.

The names of files tell; none is imported or read. A job started with ``-m``, or whose script lies in the working
directory, searches that first; all that get this environment search PYTHONPATH before Python's library::

    PYTHONPATH=/home/ann/lib:      an empty entry is the working directory
    /home/ann/lib/torch.py
"""

import posixpath
from collections.abc import Callable, Iterator, Sequence

from ddp_doctor.facts.node.software import HiddenModule, Software
from ddp_doctor.knowledge import import_path
from ddp_doctor.knowledge.import_path import TORCH
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.context import Context
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.kernel_files import names_in, target_of
from ddp_doctor.remedies.kinds import in_code, remedy
from ddp_doctor.views.software import of_the_job
from ddp_doctor.wording.findings import likely, proved
from ddp_doctor.wording.nodes import by_cause, host, name_list, node_names


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


_FOUND_BY = "the order in which Python searches for modules"


@rule("DD211", "module-hidden-by-pythonpath", Severity.ERROR, Software)
def module_hidden_by_pythonpath(recording: Recording) -> Iterator[Draft]:
    """A file on PYTHONPATH that Python loads in the place of torch, or of a module of its own library.

    Finds: A torch.py, random.py, logging/__init__.py and the like in a folder that PYTHONPATH names, by the names of
        files alone: torch, and the modules of Python's library without which torch does not come up. An installed
        torch, a folder without __init__.py and Python's own library hide nothing.
    Why: PYTHONPATH comes before Python's library and site-packages: torchrun and every rank load that file, and die
        where they import torch.
    Remedy: Rename the file, or take its folder out of PYTHONPATH.
    See: https://docs.python.org/3/library/sys_path_init.html
    """
    for hidden, group in by_cause(of_the_job(recording), _by("PYTHONPATH")).items():
        folders = [module.file.removesuffix("/__init__.py").rpartition("/")[0] or "/" for module in hidden]
        yield proved(
            _culprits(recording, group, hidden),
            f"{_title(hidden)} on {node_names(recording, group)}: PYTHONPATH comes first",
            _evidence(hidden),
            in_code(f"Rename {_files(hidden)}"),
            remedy(
                f"Or take {name_list(list(dict.fromkeys(folders)))} out of PYTHONPATH",
                scope="job",
                cost="what else lies there is no longer found",
                undo="put the folder back",
                untried="the doctor does not know what else the job needs of it",
            ),
            detail="torchrun and every rank fail at import torch. The installed torch is not to blame.",
        )


@rule("DD212", "module-hidden-in-working-directory", Severity.ERROR, Software)
def module_hidden_in_working_directory(recording: Recording) -> Iterator[Draft]:
    """A file in the working directory that some jobs load in the place of torch, or of a module of Python's library.

    Finds: The same files as module-hidden-by-pythonpath, in the folder in which the doctor was started. Silent where
        PYTHONSAFEPATH is set.
    Why: A script finds the modules of its own folder first, and ``python -m`` those of the working directory: such a
        job dies where it imports torch. A script that lies in another folder, and is not started with -m, does not see
        the file.
    Remedy: Rename the file.
    See: https://docs.python.org/3/library/sys_path_init.html
    """
    for hidden, group in by_cause(of_the_job(recording), _by("working directory")).items():
        yield likely(
            _culprits(recording, group, hidden),
            f"{_title(hidden)} on {node_names(recording, group)} by scripts in that folder and by python -m",
            _evidence(hidden),
            in_code(f"Rename {_files(hidden)}"),
            detail="Such a job fails at import torch. A script in another folder, started without -m, is not affected.",
        )


def _by(place: str) -> Callable[[Software], tuple[HiddenModule, ...] | None]:
    return lambda fact: tuple(module for module in fact.hidden_modules if module.by == place) or None


def _title(hidden: tuple[HiddenModule, ...]) -> str:
    are = "is" if len(hidden) == 1 else "are"
    own = [module.module for module in hidden if module.module != TORCH]
    names = [TORCH] * (len(own) < len(hidden)) + [f"Python's own {name}" for name in own[:1]] + own[1:]
    return f"{_files(hidden)} {are} imported instead of {name_list(names)}"


def _culprits(
    recording: Recording, group: Sequence[FactAt[Software]], hidden: tuple[HiddenModule, ...]
) -> list[Culprit]:
    """The files: their nodes are in order."""
    return [
        Culprit(kind="file", node=host(recording, fact.node), node_rank=fact.node, name=module.file)
        for fact in group
        for module in hidden
    ]


def _files(hidden: tuple[HiddenModule, ...]) -> str:
    return name_list([module.file for module in hidden])


def _evidence(hidden: tuple[HiddenModule, ...]) -> Iterator[Evidence]:
    for module in hidden:
        yield Evidence(text=f"import {module.module} finds {module.file}", expected_from=_FOUND_BY)
