"""The stand-in for libnvidia-ml, compiled once in a test run and loaded by the real pynvml."""

import functools
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.measured import MEASURED
from tests.once import once

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
SONAME = "libnvidia-ml.so.1"


@functools.cache
def library_folder(*defines: str) -> str:
    """A folder with the compiled stand-in, for LD_LIBRARY_PATH; skips where there is no C compiler.

    ``library_folder("OLD_DRIVER")`` is one that lacks what a 470 driver lacks.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the stand-in for libnvidia-ml with")
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{SONAME}"]
    command = [compiler, *flags, *(f"-D{name}" for name in defines), *map(str, SOURCES)]
    name = hashlib.sha256("\0".join(defines).encode()).hexdigest()[:16]
    return str(
        once(
            f"nvml-stand-in-{name}",
            lambda folder: subprocess.run((*command, "-o", folder / SONAME), check=True, timeout=60),
        )
    )


def environment(fault: str = "healthy", *defines: str, **more: str) -> dict[str, str]:
    """What a process needs in its environment to meet the stand-in with ``fault`` planted."""
    return {"LD_LIBRARY_PATH": library_folder(*defines), "NVML_STAND_IN": fault, **MEASURED, **more}
