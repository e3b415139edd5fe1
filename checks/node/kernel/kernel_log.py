"""The kernel log: lines about GPUs, NVSwitches, NICs and their PCIe links, and the time of boot.

The formats are those of dmesg (plain, ``-T``, ``-r``), of ``journalctl -o short-unix`` and of syslog files::

    [74889.644138] NVRM: Xid (PCI:0000:2b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
    [Sat Oct 12 18:35:32 2024] NVRM: Xid (PCI:0000:61:00): 45, pid=1496200, name=python3, Ch 0000000a
    <4>[  95.1] NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
    1714567890.120 node7 kernel: nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore
    Dec  2 11:49:53 n4 kernel: [  885.242168] NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)
    [ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0
                   NVRM: (PCI ID: 10de:26b5) installed in this system has
                   NVRM: fallen off the bus and is not responding to commands.
    [38.174242] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.195.03  Release Build  (dvs-builder@U22)
    [74889.5] pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)
    [9.1] mlx5_core 0000:17:00.0: poll_health:739:(pid 0): device's health compromised - reached miss count
    [601.0] INFO: task nvidia-smi:5403 blocked for more than 120 seconds.

The multi-line message may also arrive as one line, with ``#012`` or ``\\x0a`` between its parts, or with a time on each
line.

Sources: NVIDIA/open-gpu-kernel-modules (issues 456, 789, 1150; nvtrust issue 124; arch/nvalloc/unix/src/osinit.c),
NVIDIA/gpu-operator issue 1146, NVIDIA/NVSentinel issue 155, leptonai/gpud pulls 117 and 1209; Linux
drivers/pci/pcie/aer.c, net/ethernet/mellanox/mlx5/core/health.c.

The timestamps of the log are compared with the time of boot::

    /proc/uptime   81234.56 1234567.89
    /proc/stat     btime 1714560000
"""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from ddp_doctor.facts.node.gpus import sysfs_bus_id
from ddp_doctor.facts.node.kernel import KernelEvent, Kind
from ddp_doctor.knowledge.gpu.xids import BUS, NO_RECOVERY, OFF_BUS_LINE, RECOVERY_ACTION, SXID_LINE, XID_LINE
from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import first_line, text_of

#: Limits for one line and for the entire log, which may be junk or repeat itself a million times.
LONGEST_LINE = 400
LONGEST_TEXT = 300
MOST_GROUPS = 256
MOST_PIDS = 8
MOST_LINES = 200

_BUS = f"({BUS})"
_XID = re.compile(rf"{XID_LINE}(\d{{1,4}})\b(.*)")
_SXID = re.compile(rf"{SXID_LINE}(\d{{1,6}}), (Fatal|Non-fatal)\b")
_INIT = re.compile(rf"NVRM: (?:GPU {_BUS}: )?RmInitAdapter failed!")
#: A GPU that does not answer while the driver initializes it, which logs no Xid; or later, in addition to one.
_OFF_BUS = re.compile(OFF_BUS_LINE)
_OFF_BUS_BEGINS = re.compile(rf"NVRM: The NVIDIA GPU {_BUS}\b")
#: Newlines within a message: rsyslog and the kernel write them as numbers.
_NEWLINE = re.compile(r"#012|\\x0a")
#: Maximum number of lines from the first to the last of that message, including lines of other CPUs.
_MOST_BETWEEN = 12
_GOES_ON = ("(PCI ID", "installed", "in this", "this system", "system has", "has fallen", "fallen off", "off the bus")
_AER = re.compile(rf"\b{_BUS}: (?:AER: )?PCIe Bus Error: severity=(Corrected|Correctable|Uncorrected|Uncorrectable)\b")
_NIC = re.compile(
    rf"mlx5_core {_BUS}[ :].{{0,80}}?(device's health compromised|Fatal error \d{{1,9}} detected"
    r"|health recovery flow aborted|health recovery succeeded)"
)
_HUNG = re.compile(r"INFO: task (.{1,40}):(\d{1,10}) blocked for more than (\d{1,9}) seconds")
_ACTION = re.compile(r"recovery action changed from \S{1,20} \([^)]{0,60}\) to \S{1,20} \(([^)]{0,60})\)")
_PID = re.compile(r"\bpid='?(\d{1,10})", re.ASCII)
_SEVERITY = re.compile(r"\b(Fatal|Nonfatal)\b")
_MONOTONIC = re.compile(r"\[ {0,9}(\d{1,10}\.\d{1,9})\]")
_EPOCH = re.compile(r"(\d{9,11}\.\d{1,9}) ")
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,]\d{1,9})?([+-]\d\d:\d\d|Z) ")
#: Everything that may precede a message: level, time, caller, host.
_PREFIX = re.compile(
    r"(?:<\d{1,3}>)?(?:[^\[\]]{0,100}?kernel: ?)?"
    r"(?:[^\[\]]{0,40}\[ {0,9}(?:\d|\+|[A-Z][a-z]{2} )[^\]]{0,40}\](?:\[[^\]]{1,20}\])?)?:? ?"
)
_DRIVER_LOADED = "NVRM: loading NVIDIA UNIX"
_BOOTED = re.compile(r"(?:\]|kernel:) {1,4}Linux version \d")
#: Lines without any of these are skipped, which makes a large log quick to read.
_WORDS = ("NVRM:", "SXid (", "PCIe Bus Error", "mlx5_core ", "blocked for more than", "Linux version ")


class _Line(NamedTuple):
    """The content of one line. Not a pydantic model, because a log may have 100,000 lines."""

    kind: Kind
    device: str | None = None
    code: int | None = None
    detail: str = ""
    pid: int | None = None
    past: bool = False


@dataclass
class _Group:
    """Lines with the same message about the same device."""

    first_at_s: float | None
    last_at_s: float | None = None
    count: int = 0
    text: str = ""
    pids: dict[int, None] = field(default_factory=dict)

    def add(self, entry: _Line, text: str, at_s: float | None) -> None:
        self.count, self.text, self.last_at_s = self.count + 1, text, at_s
        if entry.pid is not None and len(self.pids) < MOST_PIDS:
            self.pids[entry.pid] = None

    def event(self, entry: _Line) -> KernelEvent:
        return KernelEvent(
            **entry._asdict(),  # the event does not include the line's own pid
            text=_without_prefix(self.text),
            count=self.count,
            first_at_s=self.first_at_s,
            last_at_s=self.last_at_s,
            pids=tuple(self.pids),
        )


@dataclass
class _Groups:
    """The events in the order of their last line."""

    groups: dict[_Line, _Group] = field(default_factory=dict)
    since_load: set[_Line] = field(default_factory=set)  # logged since the driver was last loaded
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))

    def add(self, entry: _Line, line: str, at_s: float | None) -> None:
        key = entry._replace(pid=None)
        group = self.groups.pop(key, None) or _Group(at_s)
        if len(self.groups) >= MOST_GROUPS:
            self.groups.pop(next(iter(self.groups)))
        group.add(entry, line, at_s)
        self.groups[key] = group
        self.since_load.add(key)
        self.lines.append(line[:LONGEST_TEXT])

    def pass_over(self, kinds: tuple[Kind, ...], device: str | None = None) -> None:
        """Mark earlier events of these kinds as past, for one device or for all."""
        for entry in [group for group in self.groups if group.kind in kinds and device in (None, group.device)]:
            self.groups[entry._replace(past=True)] = self.groups.pop(entry)

    def driver_loaded(self) -> None:
        """Record a reload of the driver. It is logged last, so a GPU that was just found off the bus still is."""
        self.pass_over(("xid", "sxid", "init_failed"))
        for entry in [key for key in self.groups if key.kind == "off_bus" and key not in self.since_load]:
            self.groups[entry._replace(past=True)] = self.groups.pop(entry)
        self.since_load.clear()


@dataclass(frozen=True)
class KernelLog:
    """The log of this boot: events by their last line, the lines, and the start time."""

    events: tuple[KernelEvent, ...] = ()
    lines: tuple[str, ...] = ()
    begins_at_s: float | None = None


def parse_kernel_log(text: str, booted_at: float | None = None, since_s: float = 0.0) -> KernelLog:
    """Return the events since the last boot in ``text``, but not from the first ``since_s`` seconds after it.

    ``booted_at``, in seconds since the epoch, turns clock times into seconds since the boot.
    """
    groups, begins_at_s = _Groups(), None
    begun = _Begun()
    for whole in text.splitlines():
        line = whole[:LONGEST_LINE]
        if begins_at_s is None:
            begins_at_s = _logged_at_s(line, booted_at)
        line = begun.with_its_end(line)
        if not any(word in line for word in _WORDS):
            continue
        at_s = _logged_at_s(line, booted_at)
        if _BOOTED.search(line[:200]):
            groups, begins_at_s = _Groups(), at_s
        elif at_s is None or at_s >= since_s:
            _add_line(groups, line, at_s)
    events = tuple(group.event(entry) for entry, group in groups.groups.items())
    return KernelLog(events, tuple(groups.lines), begins_at_s)


@dataclass
class _Begun:
    """The first line of a multi-line message: "NVRM: The NVIDIA GPU 0000:b3:00.0"."""

    text: str = ""
    left: int = 0  # lines that may still follow

    def with_its_end(self, line: str) -> str:
        """Return the line, or the complete message if this is its last line."""
        if _OFF_BUS_BEGINS.search(line):
            self.text, self.left = _NEWLINE.sub(" ", line), _MOST_BETWEEN
            self._join("")
            return self.text
        if self.left:
            self.left -= 1
            message = _without_prefix(line).removeprefix("NVRM: ")
            if message.startswith(_GOES_ON):
                self._join(message)
                if _OFF_BUS.search(self.text):
                    self.left = 0
                    return self.text
        return line

    def _join(self, message: str) -> None:
        head, mark, rest = f"{self.text} {message}".partition("NVRM: ")
        self.text = head + mark + " ".join(rest.replace("NVRM: ", " ").split())


def _logged_at_s(line: str, booted_at: float | None) -> float | None:
    """Return the seconds from boot to the time of a line, or None if the line has no time."""
    found = _MONOTONIC.search(line[:120])
    if found:
        return float(found[1])
    if booted_at is None:
        return None
    found = _EPOCH.match(line)
    if found:
        return float(found[1]) - booted_at
    found = _ISO.match(line)
    if not found:
        return None
    try:
        return datetime.fromisoformat(found[1] + found[2].replace("Z", "+00:00")).timestamp() - booted_at
    except ValueError:  # the 31st of February
        return None


def _add_line(groups: _Groups, line: str, at_s: float | None) -> None:
    if _DRIVER_LOADED in line:
        groups.driver_loaded()
        return
    for pattern, reader in _READERS:
        found = pattern.search(line)
        entry = reader(groups, found) if found else None
        if entry is not None:
            groups.add(entry, line, at_s)
            return


def _xid(groups: _Groups, found: re.Match[str]) -> _Line:
    device, code, message = _bus(found[1]), int(found[2]), found[3]
    if code != RECOVERY_ACTION:
        severity = _SEVERITY.search(message)
        pid = _PID.search(message)
        return _Line("xid", device, code, severity[1] if severity else "", int(pid[1]) if pid else None)
    action = _ACTION.search(message)
    wanted = action[1] if action else ""
    over = wanted in NO_RECOVERY
    if over:
        groups.pass_over(("xid",), device)
    return _Line("xid", device, code, wanted, past=over)


def _pcie(_: _Groups, found: re.Match[str]) -> _Line:
    corrected = found[2].startswith("Correct")
    return _Line("pcie_corrected" if corrected else "pcie_uncorrected", _bus(found[1]))


def _nic(groups: _Groups, found: re.Match[str]) -> _Line | None:
    if found[2].endswith("succeeded"):
        groups.pass_over(("nic_fault",), _bus(found[1]))
        return None
    return _Line("nic_fault", _bus(found[1]))


_READERS: tuple[tuple[re.Pattern[str], Callable[[_Groups, re.Match[str]], _Line | None]], ...] = (
    (_XID, _xid),
    (_SXID, lambda _, found: _Line("sxid", _bus(found[1]), int(found[2]), found[3])),
    (_OFF_BUS, lambda _, found: _Line("off_bus", _bus(found[1]))),
    (_INIT, lambda _, found: _Line("init_failed", _bus(found[1]) if found[1] else None)),
    (_AER, _pcie),
    (_NIC, _nic),
    (_HUNG, lambda _, found: _Line("hung_task", None, int(found[3]), found[1], int(found[2]))),
)


def _bus(text: str) -> str:
    """Return a bus id of the log as /sys writes it; an Xid omits the function."""
    bus = sysfs_bus_id(text)
    return bus if "." in bus else f"{bus}.0"


def _without_prefix(line: str) -> str:
    found = _PREFIX.match(line)
    return line[found.end() if found else 0 :].strip()[:LONGEST_TEXT]


_BTIME = re.compile(r"^btime (\d{1,12})$", re.MULTILINE | re.ASCII)


def uptime_s(ctx: Context) -> float | None:
    """Return the seconds since the boot. A container may see its own uptime, which is shorter than the machine's."""
    found = re.match(r"\d{1,12}\.\d+", first_line(ctx, "/proc/uptime") or "", re.ASCII)
    return max(float(found[0]), ctx.clock()) if found else None


def booted_at(ctx: Context) -> float | None:
    """Return the time of the boot, in seconds since the epoch."""
    found = _BTIME.search(text_of(ctx, "/proc/stat") or "")
    return float(found[1]) if found else None
