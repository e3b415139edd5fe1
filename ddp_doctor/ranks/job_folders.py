"""Folders that ranks make outside the run folder, where the job would write: noted first, removed by the agent.

A rank that is killed removes nothing. So it notes the path in the trial's folder before it makes the folder, one path
in each ``rank0.job_folder``. The agent removes these folders when the ranks have ended, however they ended. If the
agent was killed too, a later run removes them together with the run folder.
"""

import os
import secrets
import shutil
import stat
import threading
from contextlib import suppress
from pathlib import Path

_PREFIX = "ddp-doctor-job-"
_SUFFIX = ".job_folder"
#: A file system that hangs must not block the agent: folders that are not gone by then stay.
_WAIT_S = 2.0
_MOST = 100


def make(note: Path, parent: Path) -> str:
    """A new folder in ``parent`` that nobody else may enter. Raises OSError, and then nothing is left."""
    folder = parent.absolute() / f"{_PREFIX}{secrets.token_hex(8)}"
    note.with_suffix(_SUFFIX).write_text(str(folder))
    folder.mkdir(0o700)
    return str(folder)


def remove(trial: Path) -> None:
    """Remove the folders that the ranks of a trial noted, as far as that takes no longer than a moment."""
    with suppress(OSError):
        notes = sorted(trial.glob(f"*{_SUFFIX}"))[:_MOST]
        if notes:
            worker = threading.Thread(target=_remove, args=(notes,), daemon=True, name="job-folders")
            worker.start()
            worker.join(_WAIT_S)


def _remove(notes: list[Path]) -> None:
    for note in notes:
        with suppress(OSError, ValueError):
            folder = Path(note.read_text())
            if _is_ours(folder):
                shutil.rmtree(folder, ignore_errors=True)
            if not os.path.lexists(folder):
                note.unlink()


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder, and no link to one, with a name that only ``make`` gives."""
    named = folder.is_absolute() and folder.name.startswith(_PREFIX)
    return named and os.path.lexists(folder) and stat.S_ISDIR(folder.lstat().st_mode)
