"""The installed software, and the libraries that the dynamic linker finds.

Samples::

    nvidia-nccl-cu12==2.26.2; platform_system == "Linux"    nvidia-nccl-cu12 (==2.18.1) ; ...

/proc/driver/nvidia/version, the closed and the open kernel module::

    NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023
    NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@host)

ldd of libtorch_cuda.so; a preloaded library has no arrow::

        libnccl.so.2 => /v/site-packages/torch/lib/../../nvidia/nccl/lib/libnccl.so.2 (0x00007f2a3c000000)
        libnccl.so.2 => not found
        /opt/nccl/lib/libnccl.so.2 (0x00007f2a3c000000)

``ldconfig -p`` and ldd::

    1214 libs found in cache `/etc/ld.so.cache'
            libnccl-net.so (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnccl-net.so

            libfabric.so.1 => not found
"""

import posixpath
import re
from collections.abc import Iterable, Mapping

from ddp_doctor.model.context import CommandResult
from ddp_doctor.parse.json_value import OTHER_SHAPE, NotJson, json_object

_NCCL_PIN = re.compile(r"nvidia-nccl-cu\d+\s*\(?\s*==\s*(\d+(?:\.\d+)+)", re.ASCII)
_DRIVER = re.compile(r"^NVRM version:.*?\bKernel Module\b.*?\s(\d{2,4}\.\d+(?:\.\d+)?)(?!\S)", re.ASCII | re.MULTILINE)


def nccl_release(code: int) -> str:
    """Return NCCL's version code as text: 22907 is 2.29.7; before 2.9 the minor number had one digit, 2804."""
    step = 1000 if code < 10000 else 10000
    return f"{code // step}.{code % step // 100}.{code % 100}"


def pinned_nccl(requirements: Iterable[str]) -> str | None:
    """Return the exact NCCL version among a package's requirements, or None."""
    return next((match[1] for text in requirements if (match := _NCCL_PIN.match(text))), None)


def driver_version(text: str) -> str | None:
    """Return the driver's version in /proc/driver/nvidia/version, or None if the text is not understood."""
    match = _DRIVER.search(text)
    return match[1] if match else None


def linked_library(ldd_output: str, name: str) -> str | None:
    """Return the file that the dynamic linker uses for ``name``, "not found", or None if it is not needed."""
    for line in ldd_output.splitlines():
        wanted, arrow, found = line.strip().partition(" => ")
        path = found if arrow else wanted
        if wanted.split(" (")[0].rsplit("/", 1)[-1] == name:
            return "not found" if path.startswith("not found") else path.rsplit(" (", 1)[0]
    return None


def nccl_answer(answer: CommandResult) -> dict[str, str | None]:
    """Return the answer of the helper script ``nccl`` as fields of the fact.

    A library that fails to load or crashes is at fault. A helper without an answer proves nothing.
    """
    try:
        output = json_object(last_line(answer.stdout))
        if "error" in output:
            return {"nccl_fault": str(output["error"])}
        return {"nccl_loaded": nccl_release(output["version_code"])}
    except OTHER_SHAPE:
        if answer.returncode is not None and answer.returncode < 0:
            return {"nccl_fault": f"asking it for its version ended with signal {-answer.returncode}"}
        how = "in time" if answer.status == "timed_out" else f"(exit code {answer.returncode})"
        return {"nccl_problem": f"the helper that asks NCCL for its version gave no answer {how}"}


def torch_folder(stdout: str) -> str | None:
    """Return the directory of torch from the answer of the helper script ``software``, or None."""
    try:
        folder = json_object(last_line(stdout)).get("torch_folder")
    except NotJson:
        return None
    return folder if isinstance(folder, str) and folder.startswith("/") else None


def last_line(text: str) -> str:
    """Return the last line that a helper printed; libraries may print before it."""
    return text.strip().rpartition("\n")[2]


def gpus_hidden_by(env: Mapping[str, str]) -> str | None:
    """Return the setting that hides a machine's GPUs from the job, or None."""
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        if env.get(name, "all").strip().lower() in ("", "-1", "nodevfiles", "none", "void"):
            return f"{name}={env[name]}"
    granted = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE", "CUDA_VISIBLE_DEVICES")
    if "SLURM_JOB_ID" in env and not any(name in env for name in granted):
        return "SLURM, which granted this job no GPU"
    return None


_CACHED = re.compile(r"^[ \t]+(\S+) \([^()\n]*64[^()\n]*\) => (/[^\n]+)$", re.MULTILINE | re.ASCII)
_MISSING = re.compile(r"^[ \t]+(\S+) => not found[ \t]*$", re.MULTILINE | re.ASCII)


def cached(ldconfig_output: str) -> Mapping[str, str]:
    """Return the file of each 64-bit library in the linker's cache, or the first of several."""
    found: dict[str, str] = {}
    for match in _CACHED.finditer(ldconfig_output):
        found.setdefault(match[1], match[2].rstrip())
    return found


def missing_libraries(ldd_output: str) -> tuple[str, ...]:
    """Return the libraries that ldd did not find."""
    return tuple(dict.fromkeys(match[1] for match in _MISSING.finditer(ldd_output)))


def entries(env: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Return the entries of LD_LIBRARY_PATH or LD_PRELOAD, separated by colons, in LD_PRELOAD also by white space."""
    signs = r"[:\s]" if name == "LD_PRELOAD" else r"[:;]"
    return tuple(entry for entry in re.split(signs, env.get(name, "")) if entry)


def brought_by(env: Mapping[str, str], library: str) -> str | None:
    """Return the setting and its entry that bring this file into a process ("LD_PRELOAD=/opt/x.so"), or None."""
    file = posixpath.normpath(library)
    for entry in entries(env, "LD_PRELOAD"):
        if posixpath.normpath(entry) == file or entry == posixpath.basename(file):
            return f"LD_PRELOAD={entry}"
    for entry in entries(env, "LD_LIBRARY_PATH"):
        if posixpath.normpath(entry) == posixpath.dirname(file):
            return f"LD_LIBRARY_PATH={entry}"
    return None
