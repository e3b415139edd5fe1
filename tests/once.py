"""What is made once in a whole test run, by whichever of its processes comes first, and then used by all."""

import fcntl
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

#: The folder of a test run, which tests/conftest.py makes and removes.
VARIABLE = "DOCTORS_TESTS_SHARE"


def once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name, filled by ``make``; whoever comes meanwhile waits."""
    share = Path(os.environ.get(VARIABLE) or _of_this_process().name)
    folder, made = share / name, share / f"{name}.made"
    with (share / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            made.touch()
    return folder


@cache
def _of_this_process() -> tempfile.TemporaryDirectory[str]:
    """For a program that uses the tests' machines without being a test; it goes when the process ends."""
    return tempfile.TemporaryDirectory(prefix="ddp-doctor-tests-")
