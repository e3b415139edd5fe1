"""The directories of ddp-doctor: one keeps the newest twenty recordings, in another one ranks meet their agent."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ddp_doctor.features import indent_of
from ddp_doctor.model.choices import UsageError
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.files import CannotWrite, write
from ddp_doctor.sources.given import is_folder
from ddp_doctor.sources.own_folders import is_ours, own_bases, private_folder, state_folder, temporary_folder
from ddp_doctor.wording.findings import in_units

#: Recordings kept in the state directory.
_KEPT = 20
_KEEP_VARIABLE = "DDP_DOCTOR_KEEP"
#: Maximum number of a directory's recordings to list in a sentence.
_NAMED = 3
NOTHING_KEPT = "no recording is kept yet; `ddp-doctor run` keeps its recording"
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}", re.ASCII)


def save_recording(recording: Recording, state: Path | None, copy_of: str | None = None) -> str | None:
    """Keep a recording in ``state`` or, if that fails, in a temporary directory; return the path, or None.

    ``copy_of`` is this host's name if another node keeps the same run: home directories may be shared.
    """
    for folder in _folders(state):
        path = folder / recording.run_id / "recording.json"
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if copy_of is not None and path.exists():
                path = path.with_name(f"recording-{re.sub(r'[^A-Za-z0-9_.-]', '_', copy_of)}.json")
            write(str(path), recording.as_json(indent_of(recording.command)))
        except (OSError, CannotWrite):
            continue
        with suppress(OSError):  # keep the newest runs: their names begin with the time
            for old in _runs(folder)[:-_KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        return str(path)
    return None


def keeps_recordings(env: Mapping[str, str]) -> bool:
    """Return False if the user turned off keeping recordings."""
    return env.get(_KEEP_VARIABLE) != "0"


def keep_recording(recording: Recording, env: Mapping[str, str], copy_of: str | None = None) -> str | None:
    """Keep a recording as ``save_recording`` does. Return None if that is turned off."""
    return save_recording(recording, state_folder(env), copy_of) if keeps_recordings(env) else None


def kept_note(saved_as: str) -> str:
    """Return which recordings are kept next to this one, their size, and how to turn that off."""
    sizes = [path.stat().st_size for run in _runs(Path(saved_as).parent.parent) for path in run.glob("*.json")]
    size = in_units(sum(sizes))
    return f"The newest {_KEPT} recordings are kept there ({size} now); {_KEEP_VARIABLE}=0 keeps none."


def kept_runs(env: Mapping[str, str]) -> list[Path]:
    """Return the directories of the kept runs, the oldest first, without creating directories."""
    bases = (base / "runs" for base in own_bases(state_folder(env)) if is_ours(base) and is_ours(base / "runs"))
    return sorted((run for base in bases for run in _runs(base)), key=lambda run: run.name)


def recording_at(path: Path | None, env: Mapping[str, str]) -> Path:
    """Return the file of a recording: ``path``, or the head's or only recording in a directory. Raises UsageError.

    The default path is the newest kept run.
    """
    if path is None:
        kept = kept_runs(env)
        if not kept:
            raise UsageError(NOTHING_KEPT)
        path = kept[-1]
    if not is_folder(path):
        return path
    if (path / "recording.json").exists():
        return path / "recording.json"
    found = sorted((*path.glob("*.json"), *path.glob("*.json.gz")))
    if not found:
        raise UsageError(f"found no recording in {quoted(path)}; run `ddp-doctor replay` to list the kept recordings")
    if len(found) > 1:
        named = ", ".join(file.name for file in found[:_NAMED])
        raise UsageError(
            f"{quoted(path)} has {len(found)} files that may be recordings ({named}, ...); name one of them"
        )
    return found[0]


def meeting_folder(env: Mapping[str, str]) -> Path | None:
    """Return a directory that is the same on all ranks of this node, or None if other users could write to it."""
    for base in (env.get("XDG_RUNTIME_DIR"), temporary_folder()):
        folder = private_folder(Path(base) / f"ddp-doctor-{os.getuid()}") if base and is_folder(base) else None
        if folder is not None:
            return folder
    return None


def _folders(state: Path | None) -> Iterator[Path]:
    """Yield directories that only this user can access, best first; the last one has an unpredictable name."""
    for base in own_bases(state):
        if private_folder(base) and private_folder(base / "runs"):
            yield base / "runs"
    with suppress(OSError):
        yield Path(tempfile.mkdtemp(prefix="ddp-doctor-"))


def _runs(folder: Path) -> list[Path]:
    return sorted(
        entry
        for entry in folder.iterdir()
        if _RUN_ID.fullmatch(entry.name) and entry.is_dir() and not entry.is_symlink()
    )
