"""The stand-in for libnvidia-ml, compiled once in a test run and loaded by the real pynvml."""

import atexit
import functools
import hashlib
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from ddp_doctor import sources
from ddp_doctor.model.context import CommandResult
from tests.forked import Forked, forked
from tests.measured import MEASURED
from tests.once import once
from tests.waiting import LIMIT_S

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
SONAME = "libnvidia-ml.so.1"


@functools.cache
def library_folder(*defines: str) -> str:
    """Return a directory with the compiled stand-in for LD_LIBRARY_PATH; skips without a C compiler.

    ``library_folder("OLD_DRIVER")`` lacks the functions that a 470 driver lacks.
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
            lambda folder: subprocess.run((*command, "-o", folder / SONAME), check=True, timeout=LIMIT_S),
        )
    )


def environment(fault: str = "healthy", *defines: str, **more: str) -> dict[str, str]:
    """Return the environment that makes a process load the stand-in with the injected ``fault``."""
    return {"LD_LIBRARY_PATH": library_folder(*defines), "NVML_STAND_IN": fault, **MEASURED, **more}


@functools.cache
def answer(child: str, limit_s: str, fault: str = "healthy", *defines: str, **more: str) -> CommandResult:
    """Return the output of ``sources/child_NAME.py`` with the injected ``fault``, from a separate process."""
    env = environment(fault, *defines, **more)
    script = Path(sources.__file__).with_name(f"child_{child}.py")
    done = bound_to(env["LD_LIBRARY_PATH"], _CHILD)(str(script), limit_s, env=env)
    return CommandResult((str(script), limit_s), "ended", done.returncode, done.stdout, done.stderr)


#: Most of what a child takes is the import of pynvml. Its second look comes sooner.
_CHILD = (
    "import pynvml, runpy, time; pause = time.sleep; time.sleep = lambda seconds: pause(seconds / 10)",
    "sys.argv = args[1:]; runpy.run_path(sys.argv[0], run_name='__main__')",
)


@functools.cache
def bound_to(folder: str, code: tuple[str, str]) -> Forked:
    """Return a program that loads the library in this folder, which the linker reads when the process starts."""
    stack = ExitStack()
    atexit.register(stack.close)
    streams = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddp-doctor-tests-")))
    env = {"LD_LIBRARY_PATH": folder, **MEASURED}
    return stack.enter_context(forked(streams, "child", code, env))
