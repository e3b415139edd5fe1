r"""The limits of a host, as /proc, /sys and the environment show them.

/proc/meminfo, /proc/loadavg, /proc/stat, /proc/self/status and /proc/self/uid_map::

    MemAvailable:   23492432 kB
    3.25 1.11 0.99 2/138 16370
    cpu0 3357 0 4313 1362393 0 0 0 0 0 0
    CapEff:	000001ffffffffff
             0          0 4294967295

Also the machine's vendor as its firmware reports it, and the drivers of its network interfaces. Serial numbers and
UUIDs, which only root may read, are not read::

    /sys/class/dmi/id/sys_vendor                 Amazon EC2
    /sys/class/net/ens32/device/driver           -> ../../../../bus/pci/drivers/ena
"""

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address, ip_interface
from typing import NamedTuple

from ddp_doctor.facts.node.host import BusyProcess
from ddp_doctor.knowledge.thresholds import BUSY_PROCESS_CPUS
from ddp_doctor.knowledge.topology.cluster_kinds import Maker
from ddp_doctor.model.context import Context, Disk, Interface
from ddp_doctor.parse.cgroup import Reader
from ddp_doctor.probing.kernel_files import end_of, first_line, names_in, text_of
from ddp_doctor.probing.pci_devices import NET, RDMA

CLOCK_SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
_SHARED_MEMORY = "/dev/shm"  # noqa: S108  where NCCL and data loaders put their segments
_LOCALHOST = ip_address("127.0.0.1")
NO_SHARED_MEMORY = f"{_SHARED_MEMORY} does not exist"
#: The start of the reason if the state is unknown, because the system call failed with another error.
NOT_LOOKED_AT = f"{_SHARED_MEMORY}: "
_TOO_LONG_TO_KEEP = ("/proc/stat", "/proc/self/mountinfo", "/proc/self/status")
_DMI = "/sys/class/dmi/id"
_LONGEST_NAME = 80
_CAP_IPC_LOCK = 14  # linux/capability.h
#: /proc/PID/stat: "4711 (stress-ng) R 1 …"; fields 14 and 15 are utime and stime, in ticks (proc_pid_stat(5)).
_STAT = re.compile(
    r"\d+ \((?P<name>.*)\) \S (?P<parent>\d{1,9})(?: -?\d+){9} (?P<user>\d{1,18}) (?P<system>\d{1,18})\b",
    re.ASCII | re.DOTALL,
)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BUSIEST = 2
#: Seconds between two samples; a tick is a hundredth.
_LOOKS_APART_S = 0.3


def reader(ctx: Context) -> Reader:
    """Return a function that reads a file through the probe's context and keeps its text, or returns None."""

    def read(path: str) -> str | None:
        try:
            text = ctx.read(path)
        except OSError:
            return None
        if path not in _TOO_LONG_TO_KEEP:
            ctx.keep(f"{path}: {text}")
        return text

    return read


def shared_memory(ctx: Context) -> tuple[Disk | None, str | None]:
    """Return the size of /dev/shm, None without a limit (a tmpfs of size=0), and why no segment can be created."""
    try:
        disk = ctx.disk(_SHARED_MEMORY)
    except FileNotFoundError:
        return None, NO_SHARED_MEMORY
    except OSError as error:
        return None, f"{NOT_LOOKED_AT}{error.strerror}"
    problem = disk.problem and f"{_SHARED_MEMORY} {disk.problem}"
    return (disk if disk.total_bytes else None), problem


def loopback_problem(interfaces: Callable[[], Sequence[Interface]]) -> str | None:
    """Return why this host's processes cannot reach each other over 127.0.0.1, or None if they can or it is unknown."""
    try:
        loopbacks = [interface for interface in interfaces() if interface.loopback]
    except OSError:
        return None
    if not loopbacks:
        return None
    name = loopbacks[0].name
    if not any(interface.up for interface in loopbacks):
        return f"{name} is down"
    addresses = (
        ip_interface(text.partition("%")[0]) for each in loopbacks for text in each.addresses if ":" not in text
    )
    if any(_LOCALHOST in address.network for address in addresses):
        return None
    return f"{name} has no address {_LOCALHOST}"


def shared_memory_device(ctx: Context) -> int | None:
    """Return the device number of /dev/shm, with which NCCL detects whether two ranks share it."""
    try:
        return ctx.disk(_SHARED_MEMORY).device
    except OSError:
        return None


def rdma_devices(ctx: Context) -> tuple[str, ...]:
    """Return the RDMA devices with an active port; NCCL uses no others."""
    read = reader(ctx)

    def is_active(device: str) -> bool:
        ports = f"{RDMA}/{device}/ports"
        return any("ACTIVE" in (read(f"{ports}/{port}/state") or "") for port in names_in(ctx, ports))

    return tuple(device for device in names_in(ctx, RDMA) if is_active(device))


def memory_bytes(meminfo: str, name: str) -> int | None:
    """Return one value of /proc/meminfo in bytes."""
    match = re.search(rf"^{name}:\s+(\d{{1,15}}) kB$", meminfo, re.MULTILINE | re.ASCII)
    return int(match[1]) * 1024 if match else None


class CpuTime(NamedTuple):
    """The name of a process, its parent and its CPU time."""

    name: str
    parent: int
    ticks: int


def cpu_time(stat: str) -> CpuTime | None:
    """Parse /proc/PID/stat, whose process name may contain brackets and spaces; None if invalid."""
    found = _STAT.match(stat)
    return CpuTime(found["name"], int(found["parent"]), int(found["user"]) + int(found["system"])) if found else None


def busiest(ctx: Context) -> tuple[BusyProcess, ...]:
    """Return up to two processes that use the most CPU now, except this one and its descendants."""
    before, began = _cpu_times_by_pid(ctx), ctx.clock()
    threading.Event().wait(_LOOKS_APART_S)
    after, took_s = _cpu_times_by_pid(ctx), max(ctx.clock() - began, _LOOKS_APART_S)
    own = end_of(ctx, "/proc/self") or ""
    parents = {pid: process.parent for pid, process in after.items()}
    found = [
        BusyProcess(name=now.name, pid=pid, cpus=round((now.ticks - before[pid].ticks) / _TICKS_PER_S / took_s, 2))
        for pid, now in after.items()
        if pid in before and not (own.isdecimal() and _is_descendant(pid, int(own), parents))
    ]
    much = [process for process in found if process.cpus >= BUSY_PROCESS_CPUS]
    return tuple(sorted(much, key=lambda process: -process.cpus)[:_BUSIEST])


def _cpu_times_by_pid(ctx: Context) -> dict[int, CpuTime]:
    stats = {int(pid): text_of(ctx, f"/proc/{pid}/stat") for pid in names_in(ctx, "/proc") if pid.isdecimal()}
    return {pid: known for pid, stat in stats.items() if (known := cpu_time(stat or "")) is not None}


def _is_descendant(pid: int, above: int, parents: Mapping[int, int]) -> bool:
    seen = set[int]()
    while pid not in seen:
        if pid == above:
            return True
        seen.add(pid)
        pid = parents.get(pid, pid)
    return False


def load_1min(loadavg: str) -> float | None:
    """Return the host's load average of the last minute."""
    match = re.match(r"\d{1,9}\.\d+", loadavg, re.ASCII)
    return float(match[0]) if match else None


def online_cpus(stat: str) -> int | None:
    """Return the number of logical CPUs of the entire host, even inside a container."""
    return len(re.findall(r"^cpu\d+ ", stat, re.MULTILINE | re.ASCII)) or None


def memlock_is_ignored(read: Reader) -> bool:
    """Return True if the kernel lets this process lock more than RLIMIT_MEMLOCK, as it does for the host's root.

    This requires CAP_IPC_LOCK outside any user namespace, so root in a rootless container does not count.
    """
    match = re.search(r"^CapEff:\s*([0-9a-f]{1,16})$", read("/proc/self/status") or "", re.MULTILINE | re.ASCII)
    initial = (read("/proc/self/uid_map") or "").split() in ([], ["0", "0", "4294967295"])
    return initial and match is not None and bool(int(match[1], 16) >> _CAP_IPC_LOCK & 1)


def omp_threads(value: str) -> int | None:
    """Return the threads that OMP_NUM_THREADS sets for the outermost level ("4" or "4,2"), or None if invalid."""
    match = re.match(r"\s*(\d{1,6})\s*(,|$)", value, re.ASCII)
    return int(match[1]) or None if match else None


def several_tasks(env: Mapping[str, str]) -> bool:
    """Return True if srun or mpirun started several tasks on this node, which may each be bound to different CPUs.

    SLURM_STEP_TASKS_PER_NODE is "8" or "8(x2),4"; Open MPI and Intel MPI set a plain number.
    """
    names = ("SLURM_STEP_TASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    counts = (re.match(r"\d{1,6}", env.get(name, ""), re.ASCII) for name in names)
    return any(count is not None and int(count[0]) > 1 for count in counts)


def rdma_unused_by(env: Mapping[str, str]) -> str | None:
    """Return the setting that keeps NCCL from using RDMA devices, or None."""
    disabled = env.get("NCCL_IB_DISABLE", "")
    if re.match(r"\s*\+?0*[1-9]", disabled, re.ASCII):  # NCCL reads it with strtoll; "true" is 0
        return f"NCCL_IB_DISABLE={disabled}"
    net = env.get("NCCL_NET", "")
    return f"NCCL_NET={net}" if net.lower() == "socket" else None


def maker(ctx: Context) -> Maker:
    """Return the machine's vendor, from its firmware, and its network drivers; raises nothing."""
    drivers = {end_of(ctx, f"{NET}/{name}/device/driver") for name in names_in(ctx, NET)}
    return Maker(
        vendor=_dmi_text(ctx, "sys_vendor"),
        product=_dmi_text(ctx, "product_name"),
        asset_tag=_dmi_text(ctx, "chassis_asset_tag"),
        network_drivers=tuple(sorted(name[:_LONGEST_NAME] for name in drivers if name)),
    )


def _dmi_text(ctx: Context, name: str) -> str | None:
    text = first_line(ctx, f"{_DMI}/{name}") or ""
    return "".join(sign for sign in text if sign.isprintable())[:_LONGEST_NAME].strip() or None
