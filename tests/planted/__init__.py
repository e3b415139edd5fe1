"""Simulated GPUs: the unchanged libnccl of NVIDIA's wheels, run on a machine without a GPU.

A machine is one of tests/machines. Its PCI tree and adapters become a /sys, and its stand-in for libnvidia-ml defines
the GPUs. The simulated CUDA (runtime and driver) and libibverbs answer from these two, so that none of them can
contradict another. Topology search, transports, tuning, bootstrap, messages and RAS are NCCL's own. Kernels do nothing,
data of collectives does not move, and time, bandwidth and faults inside a GPU are not simulated. Results of these
machines are always called "planted", never "seen on a GPU".

Nothing of NVIDIA's is changed or kept: the redirection of libnccl's own runtime exists only in the memory of one
process (redirect.c, docs/adr).
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests import elf, nvml_stand_in
from tests.lab.hosts import why_no_lab
from tests.once import once
from tests.waiting import LIMIT_S

_HERE = Path(__file__).parent
_CUDA = ("machine.c", "memory.c", "streams.c", "devices.c", "redirect.c")
#: The library that a rank preloads.
WAITS = "waits.so"
#: Where nvidia-smi stands, for PATH.
TOOLS = "bin"
_FLAGS = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-fvisibility=hidden")


@cache
def libraries() -> Path:
    """Return a directory with libcuda, libnvidia-ml and libibverbs for LD_LIBRARY_PATH; skips without a C compiler."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) to build the planted CUDA with")
    return once("planted-libraries", _compile)


def why_none() -> str | None:
    """Return why no GPU can be simulated here, or None if it can."""
    if platform.machine() != "x86_64":
        return f"no GPU can be planted on {platform.machine()}: redirect.c writes jumps of x86_64"
    return why_no_lab("cc")


def why_not_before(library: Path) -> str | None:
    """Return why this libnccl cannot be redirected, or None if it can."""
    return None if _holds_the_runtime(library) else f"{library} has no symbols of a CUDA runtime to redirect"


@cache
def _holds_the_runtime(library: Path) -> bool:
    try:
        return any(name.startswith("cuda") for name, _ in elf.functions(library))
    except KeyError:  # no table of symbols
        return False


def _compile(folder: Path) -> None:
    sources = [str(_HERE / name) for name in _CUDA]
    linked = ("-Wl,-soname,libcuda.so.1", "-ldl", "-lpthread")
    subprocess.run(("cc", *_FLAGS, *sources, "-o", folder / "libcuda.so.1", *linked), check=True, timeout=LIMIT_S)
    made = folder / "libplanted-collectives.so"
    beside = ("-O3", f"-L{folder}", "-l:libcuda.so.1", "-ldl", "-lpthread")
    subprocess.run(("cc", *_FLAGS, _HERE / "collectives.c", "-o", made, *beside), check=True, timeout=LIMIT_S)
    verbs = (f"-Wl,--version-script={_HERE / 'verbs.map'}", "-Wl,-soname,libibverbs.so.1", "-lpthread")
    made = folder / "libibverbs.so.1"
    subprocess.run(("cc", *_FLAGS, _HERE / "verbs.c", "-o", made, *verbs), check=True, timeout=LIMIT_S)
    subprocess.run(("cc", *_FLAGS, _HERE / "waits.c", "-o", folder / WAITS, "-ldl"), check=True, timeout=LIMIT_S)
    shutil.copy(Path(nvml_stand_in.library_folder()) / nvml_stand_in.SONAME, folder)
    (folder / TOOLS).mkdir()
    shutil.copy(_HERE / "nvidia_smi.py", folder / TOOLS / "nvidia-smi")
