"""The stand-in for libnvidia-ml, compiled once per test session and loaded by the real pynvml."""

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.measured import MEASURED

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
    folder = Path(tempfile.mkdtemp(prefix="nvml-stand-in-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{SONAME}"]
    command = [compiler, *flags, *(f"-D{name}" for name in defines), "-o", str(folder / SONAME)]
    command += map(str, SOURCES)
    subprocess.run(command, check=True, timeout=60)
    return str(folder)


def environment(fault: str = "healthy", *defines: str, **more: str) -> dict[str, str]:
    """What a process needs in its environment to meet the stand-in with ``fault`` planted."""
    return {"LD_LIBRARY_PATH": library_folder(*defines), "NVML_STAND_IN": fault, **MEASURED, **more}
