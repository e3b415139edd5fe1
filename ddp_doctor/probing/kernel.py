"""A node's kernel log, its NVIDIA modules, and the driver libraries that programs load.

    /sys/module/nvidia/version            550.90.07
    /sys/module/nvidia_peermem/version    550.90.07
    /proc/driver/nvidia/version           NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May …
                                          NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.195.03
    /usr/lib/x86_64-linux-gnu/libcuda.so.1 -> libcuda.so.550.90.07
    /sys/class/infiniband/mlx5_0/device/driver -> ../../../../bus/pci/drivers/mlx5_core

Everything is read through the probe's context. Nothing is raised: an unreadable file counts as missing.
"""

import re
from dataclasses import dataclass

from ddp_doctor.knowledge.gpu.gpudirect import PEERMEM_FILES, PEERMEM_MODULES
from ddp_doctor.model.context import Context
from ddp_doctor.probing.host_limits import rdma_devices
from ddp_doctor.probing.kernel_files import end_of, first_line, names_in, target_of
from ddp_doctor.probing.pci_devices import RDMA, device_of

#: Seconds for each source. Only the last lines or bytes are read.
LIMIT_S = 4.0
JOURNAL_LINES = 20000
FILE_BYTES = 4_000_000

#: If kernel.dmesg_restrict is 1, users cannot read dmesg. Members of groups such as adm and systemd-journal can read
#: the journal and syslog's files.
_COMMANDS = (
    ("dmesg",),
    ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-unix", "-n", str(JOURNAL_LINES)),
    ("tail", "-c", str(FILE_BYTES), "/var/log/kern.log"),
    ("tail", "-c", str(FILE_BYTES), "/var/log/messages"),
)


@dataclass(frozen=True)
class LogText:
    """The text and its source, or the reason why there is none."""

    text: str = ""
    source: str | None = None
    problem: str | None = None


def read_log(ctx: Context) -> LogText:
    """Return the kernel log of this boot from the first source that has one."""
    reasons = []
    for command in _COMMANDS:
        name = command[-1] if command[0] == "tail" else command[0]
        result = ctx.run(command, LIMIT_S)
        lines = result.stdout.splitlines()
        # Require a log line, because a source may print only that it has no log.
        is_log = command[0] == "tail" or any(line[:1] in "[<0123456789" for line in lines[:20] if line)
        if result.ok and lines and is_log:
            return LogText(result.stdout, name)
        reason = "not installed" if result.status == "missing" else f"no answer within {LIMIT_S:g} s"
        if result.status == "ended":
            errors = result.stderr.strip().splitlines()
            reason = errors[0].removeprefix("dmesg: ")[:120] if errors else "nothing to read"
        reasons.append(f"{name}: {reason}")
    return LogText(problem="; ".join(reasons)[:400])


MODULES = (
    *("nvidia", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", *PEERMEM_MODULES, "gdrdrv", "nouveau"),
    *("mlx5_core", "ib_core"),
)
LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
#: Directories in which distributions and container runtimes put the driver's libraries.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
)
_DRIVER = re.compile(r"(Open )?Kernel Module(?: for \S{1,20})?\s+(\d{1,4}(?:\.\d{1,4}){1,3})\b", re.ASCII)
_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,4}", re.ASCII)


def modules(ctx: Context) -> dict[str, str]:
    """Return the relevant loaded modules and their versions ("" without one)."""
    loaded = names_in(ctx, "/sys/module")
    return {name: (first_line(ctx, f"/sys/module/{name}/version") or "")[:40] for name in MODULES if name in loaded}


def driver(text: str | None) -> tuple[str | None, bool | None]:
    """Return the loaded NVIDIA driver's version and whether it is the open one, from /proc/driver/nvidia."""
    found = _DRIVER.search(text or "")
    return (found[2], found[1] is not None) if found else (None, None)


def peermem(ctx: Context, loaded: dict[str, str]) -> str | None:
    """Return the peer memory module, or the file with which NCCL detects one."""
    names = [name for name in PEERMEM_MODULES if name in loaded]
    return next(iter(names), next((path for path in PEERMEM_FILES if first_line(ctx, path) is not None), None))


def libraries(ctx: Context) -> dict[str, str]:
    """Return the driver libraries that a program would load: the link's path, and the version that it points to."""
    found = {}
    for path in (f"{folder}/{name}.1" for folder in LIBRARY_FOLDERS for name in LIBRARIES):
        version = (target_of(ctx, path) or "").rpartition("/")[2].partition(".so.")[2]
        if _VERSION.fullmatch(version) and version != "1":
            found[path] = version
    return found


def rdma_drivers(ctx: Context) -> dict[str, str]:
    """Return the RDMA devices with an active port, and their kernel drivers ("" if unknown)."""
    return {name: end_of(ctx, f"{RDMA}/{name}/device/driver") or "" for name in rdma_devices(ctx)}


def rdma_pci_devices(ctx: Context) -> dict[str, str]:
    """Return the names of the RDMA devices by PCI device; software devices have none."""
    found = {name: device_of(ctx, f"{RDMA}/{name}/device") for name in names_in(ctx, RDMA)}
    return {bus: name for name, bus in found.items() if bus is not None}
