"""The start of the single file: Python runs it as __main__.py. tools/single_file.py appends the call of ``main``.

The packages are unpacked once, into a directory of this user's cache, and loaded from it, because compiled modules do
not load from a zip. Without a cache that is trusted and writable, they are unpacked for this one run and removed. A
process that runs from a directory holds a lock on it, so other processes know which directories to keep.

An older Python must reach the sentence that refuses it, so this file is limited to Python 3.7. It imports little,
because it runs before each prolog.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from typing import NoReturn

_LOCK = ".lock"
#: Prefix of directories for one run.
_PREFIX = "ddp-doctor-files-"


def main(release: str, made_for: str, suffix: str, megabytes: int) -> None:
    """Unpack the packages if necessary, and run ddp-doctor.

    ``suffix`` is the suffix of the compiled modules, which names Python, processor and C library.
    """
    if suffix not in EXTENSION_SUFFIXES:
        here = f"Python {sys.version_info[0]}.{sys.version_info[1]} ({EXTENSION_SUFFIXES[0]})"
        _refuse(f"this file requires {made_for}, but {sys.executable} is {here}")
    problems: list[str] = []
    folder = _kept(release, problems)
    passing = None if folder else _passing(problems)
    if not folder and not passing:
        where = "; ".join(problems)
        _refuse(f"no directory has room for {megabytes} MB of packages: {where}; set TMPDIR to one that has")
    sys.path[0] = folder or passing or ""  # instead of the file itself
    from ddp_doctor.__main__ import main as run

    run(lambda: _remove(passing) if passing else None)


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"ddp-doctor: {sentence}\n")
    sys.exit(2)


def _kept(release: str, problems: list[str]) -> str | None:
    """Return the directory of this release in the cache, unpacked if necessary, or None if it is unavailable."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    cache = os.path.realpath(cache)
    own = os.path.join(cache, "ddp-doctor")
    folder = os.path.join(own, release)
    try:
        _require_trust(cache)
        if not _is_there(folder):
            _make_private(own)
            _unpack_as(folder)
            _forget_unused(own, "")
        _require_private(own)
        _hold(folder, fcntl.LOCK_SH)
        _require_private(folder)
    except OSError as error:
        problems.append(f"{own}: {error.strerror}")
        return None
    return folder


def _make_private(folder: str) -> None:
    """Make a directory of the cache, and the cache, but not the home directory (/nonexistent, as for services)."""
    for path in (os.path.dirname(folder), folder):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
    _require_private(folder)


def _is_there(folder: str) -> bool:
    return os.path.exists(os.path.join(folder, _LOCK))


def _unpack_as(folder: str) -> None:
    """Unpack under another name first, so no process finds an incomplete directory."""
    own, name = os.path.split(folder)
    half = _unpacked_in(own, f"{name}.")
    try:
        os.rename(half, folder)
    except OSError:  # another process was faster
        _remove(half)
        if not _is_there(folder):
            raise


def _passing(problems: list[str]) -> str | None:
    """Return a directory for only this run, or None if it is unavailable."""
    places = (os.environ.get("TMPDIR") or "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - mkdtemp below
    for place in map(os.path.realpath, places):
        try:
            _require_trust(place)
            _forget_unused(place, _PREFIX)
            return _unpacked_in(place, _PREFIX)
        except OSError as error:
            problems.append(f"{place}: {error.strerror}")
    return None


def _unpacked_in(place: str, prefix: str) -> str:
    """Return a new private directory with all packages, locked by this process. Raises OSError and leaves nothing."""
    import tempfile
    import zipfile

    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        raise OSError(13, "it is mounted noexec, so compiled modules do not load from it")
    folder = tempfile.mkdtemp(prefix=prefix, dir=place)
    umask = os.umask(0o077)
    try:
        open(os.path.join(folder, _LOCK), "w").close()
        _hold(folder, fcntl.LOCK_SH)
        with zipfile.ZipFile(os.path.dirname(__file__)) as file, zipfile.ZipFile(file.open("packages.zip")) as inner:
            inner.extractall(folder)
    except BaseException as error:
        _remove(folder)
        if isinstance(error, zipfile.BadZipFile):
            _refuse(f"this file is damaged, copy it anew: {error}")
        raise
    finally:
        os.umask(umask)
    return folder


def _require_trust(folder: str) -> None:
    """Require that only this user and root may rename anything in a directory or above it. Raises OSError."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(folder)
            is_open = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
            if is_open or found.st_uid not in (0, os.geteuid()):
                raise OSError(13, f"others can change {folder}")
        if folder == os.path.dirname(folder):
            return
        folder = os.path.dirname(folder)


def _require_private(folder: str) -> None:
    """Require a directory of this user that is closed to all others. Raises OSError."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise OSError(13, f"{folder} is open to other users, or another user created it")


def _hold(folder: str, how: int) -> int:
    """Lock a directory until this process exits. Raises OSError if another process has a conflicting lock.

    A shared lock is optional on a file system without locks, because no directory is ever removed on it.
    """
    lock = os.open(os.path.join(folder, _LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except OSError as error:
        if how == fcntl.LOCK_EX or error.errno == errno.EWOULDBLOCK:
            os.close(lock)
            raise
    return lock


def _forget_unused(place: str, prefix: str) -> None:
    """Remove directories of this user that older releases and killed processes have left."""
    for name in os.listdir(place):
        folder = os.path.join(place, name)
        with contextlib.suppress(OSError):
            if name.startswith(prefix) and os.lstat(folder).st_uid == os.geteuid():
                lock = _hold(folder, fcntl.LOCK_EX)
                _remove(folder)
                os.close(lock)


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
