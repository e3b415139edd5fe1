"""Processes of running jobs: which may be ranks, and samples of each. Nothing is changed, and no signal is sent."""

import os
import platform
import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ddp_doctor.features.jobs.facts import ChildSeen, Look, Unacknowledged
from ddp_doctor.features.jobs.live_frames import GLOO_NETWORK, GLOO_WORKER, GROUP_THREADS, NCCL_WATCHDOG
from ddp_doctor.features.jobs.sources.system_calls import CALLS, Call
from ddp_doctor.sources import proc

#: gloo's groups have two threads each (torch 2.13 ProcessGroupGloo::Options, threads = 2).
_THREADS_OF_GLOO = 2
_TORCH = re.compile(r"/libtorch(?:_cpu|_python)?\.so")
_COMPILERS = re.compile(
    r"_inductor[./]compile_worker|^(?:gcc|g\+\+|cc1plus|cc1|clang|clang\+\+|nvcc|ptxas|cicc|ninja|ld|as|cudafe\+\+)$"
)
#: Maximum number of descendants of a rank that are read, and of steps up to an ancestor.
_MOST_CHILDREN, _MOST_STEPS = 64, 8
#: States of TCP sockets (linux/tcp_states.h).
_ESTABLISHED, _CONNECTS, _LISTENS = "01", "02", "0A"
#: A gloo rank has as many connections as there are other ranks.
_MOST_CONNECTIONS = 1024


@dataclass(frozen=True)
class Candidate:
    """A process that has torch loaded and may be read."""

    pid: int
    parent: int
    started: int  # clock ticks since boot
    env: Mapping[str, str]
    threads: Mapping[int, str]
    command: Sequence[str]

    @property
    def has_groups(self) -> bool:
        """Return True if it has joined a process group."""
        return any(GROUP_THREADS.fullmatch(name) for name in self.threads.values())

    @property
    def rank(self) -> int | None:
        """The rank from its environment, which a script may have changed."""
        return proc.number(self.env, "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

    @property
    def local_rank(self) -> int | None:
        """The local rank from its environment."""
        return proc.number(self.env, "LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")

    @property
    def groups(self) -> int:
        """The number of its process groups, from its threads; 0 if they do not show any."""
        names = list(self.threads.values())
        return names.count(NCCL_WATCHDOG) or -(-names.count(GLOO_WORKER) // _THREADS_OF_GLOO)

    @property
    def backend(self) -> str | None:
        """The backend of its groups, from its threads, or None if unknown."""
        names = self.threads.values()
        return "nccl" if NCCL_WATCHDOG in names else "gloo" if GLOO_WORKER in names else None


def candidate(pid: int) -> Candidate | None:
    """Return this process if it has torch loaded and may be read, or None."""
    return readable(pid) if _TORCH.search(proc.read(f"/proc/{pid}/maps") or "") else None


def readable(pid: int) -> Candidate | None:
    """Return a process, with or without torch, or None if it may not be read."""
    fields, env = proc.stat_fields(pid), current_environment(pid)
    if not fields or env is None:
        return None
    return Candidate(pid, int(fields[1]), int(fields[19]), env, proc.threads(pid), proc.command(pid))


def ancestors(pid: int) -> list[int]:
    """Return the parent of a process, the parent's parent, and so on."""
    found: list[int] = []
    while len(found) < _MOST_STEPS and (pid := proc.parent(pid)) > 0:
        found.append(pid)
    return found


def network_of(pid: int) -> str:
    """Return the network namespace of a process; empty if it may not be read."""
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


class Watched:
    """A process that is sampled repeatedly."""

    def __init__(self, pid: int) -> None:
        self.pid = self.thread = pid  # the thread that trains
        names = proc.threads(pid)
        self._autograd = [thread for thread, name in names.items() if name.startswith("pt_autograd")]
        self._gloo = [thread for thread, name in names.items() if name == GLOO_WORKER]
        self._network = [thread for thread, name in names.items() if name == GLOO_NETWORK]

    def look(self, frames: tuple[str, ...] = (), *, holds_gil: bool = False) -> Look | None:
        """Return a sample of the process from /proc, or None if it has exited."""
        fields = proc.stat_fields(self.pid)
        if not fields:
            return None
        main = proc.stat_fields(self.pid, self.thread)
        return Look(
            at_s=round(time.monotonic(), 3),
            state=fields[0],
            cpu_s=proc.seconds(fields),
            main_cpu_s=proc.seconds(main) if main else 0.0,
            main_queued_s=round(proc.run_and_queued_s(self.pid, self.thread)[1], 3),
            main_switches=_switches(self.pid, self.thread),
            autograd_switches=sum(_switches(self.pid, thread) for thread in self._autograd),
            gloo_switches=sum(_switches(self.pid, thread) for thread in self._gloo),
            network_cpu_s=sum(
                proc.seconds(of) for thread in self._network if (of := proc.stat_fields(self.pid, thread))
            ),
            io_bytes=proc.io_bytes(self.pid),
            wait_channel=proc.wait_channel(self.pid, self.thread),
            frames=frames,
            holds_gil=holds_gil,
        )


def _switches(pid: int, thread: int) -> int:
    counts = proc.counts(f"/proc/{pid}/task/{thread}/status")
    return counts.get("voluntary_ctxt_switches", 0) + counts.get("nonvoluntary_ctxt_switches", 0)


@dataclass
class Children:
    """The processes below a rank, with their first samples."""

    pids: Sequence[int]
    first: dict[int, Look] = field(default_factory=dict)

    def begin(self) -> None:
        """Take the first sample of each."""
        self.first = {pid: look for pid in self.pids[:_MOST_CHILDREN] if (look := Watched(pid).look())}

    def seen(self, stacks: Mapping[int, tuple[str, ...]]) -> tuple[ChildSeen, ...]:
        """Return each process with its last sample. ``stacks`` are from the last sample, by pid."""
        found = []
        for pid, first in self.first.items():
            last = Watched(pid).look(stacks.get(pid, ()))
            if last is not None:
                is_loader = any(frame.endswith(" in _worker_loop") for frame in last.frames)
                kind = "loader" if is_loader else kind_of_child(pid)
                found.append(ChildSeen(pid=pid, kind=kind, first=first, last=last))
        return tuple(found)


def kind_of_child(pid: int) -> Literal["loader", "compiler", "other"]:
    """Return the purpose of a process that a rank started. torch 2.6 and later name loader workers pt_data_worker."""
    name, command = (proc.read(f"/proc/{pid}/comm") or "").strip(), " ".join(proc.command(pid))
    if name.startswith("pt_data_worker"):
        return "loader"
    if any(map(_COMPILERS.search, (name, command))):
        return "compiler"
    return "other"


def below(pid: int, tree: Mapping[int, Sequence[int]]) -> list[int]:
    """Return all descendants of a process. ``tree``: children by pid."""
    found: list[int] = []
    left = list(tree.get(pid, ()))
    while left and len(found) < _MOST_CHILDREN:
        child = left.pop()
        found.append(child)
        left += tree.get(child, ())
    return found


# --- why it makes no progress ------------------------------------------------------------------------


def is_frozen(pid: int) -> bool:
    """Return True if its control group, or one above it, is frozen."""
    for line in (proc.read(f"/proc/{pid}/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and "frozen 1" in (proc.read(f"/sys/fs/cgroup{path}/cgroup.events") or ""):
            return True
        if "freezer" in controllers.split(","):
            state = proc.read(f"/sys/fs/cgroup/freezer{path}/freezer.state") or ""
            return state.strip() in ("FROZEN", "FREEZING")
    return False


def tracer(pid: int) -> str:
    """Return the process that traces it, ``gdb (pid 77)``; empty if none does."""
    found = proc.status(pid).get("TracerPid", "0")
    if not found.isdigit() or found == "0":
        return ""
    name = (proc.read(f"/proc/{found}/comm") or "a process").strip()
    return f"{name} (pid {found})"


#: Limits for reading a system call's arguments.
_LONGEST_PATH = 512
_MOST_FILES = 3
_POLLFD = struct.Struct("=ihh")  # poll(2): descriptor, requested events, returned events


def waits_for(pid: int, thread: int, peers: Mapping[str, str]) -> str:
    """Return ``read from the FIFO /data/in`` or ``flock of /data/lock``; empty if it runs or the kernel does not say.

    ``peers``: the addresses at the other ends of sockets, by inode.
    """
    words = (proc.read(f"/proc/{pid}/task/{thread}/syscall") or "").split()
    if len(words) < 7 or not words[0].isdigit():
        return ""
    call = CALLS.get(platform.machine(), {}).get(int(words[0]))
    if call is None:
        return ""
    arguments = [int(word, 16) for word in words[1:7]]
    named = [_name_of_file(pid, file, peers) for file in _files_of_call(pid, call, arguments)]
    of = " and ".join(filter(None, named))
    return f"{call.name} {call.word} {of}".strip() if of else f"{call.name}{call.alone}"


def _files_of_call(pid: int, call: Call, arguments: list[int]) -> Sequence[str | int]:
    if call.takes == "descriptor":
        return [arguments[0]]
    if call.takes == "path":
        return [_read_memory(pid, arguments[call.at], _LONGEST_PATH).partition(b"\0")[0].decode(errors="replace")]
    if call.takes == "pollfds":
        raw = _read_memory(pid, arguments[0], _POLLFD.size * min(arguments[1], _MOST_FILES))
        whole = raw[: len(raw) // _POLLFD.size * _POLLFD.size]
        return [file for file, *_ in _POLLFD.iter_unpack(whole)]
    if call.takes == "epoll":
        lines = (proc.read(f"/proc/{pid}/fdinfo/{arguments[0]}") or "").splitlines()
        return [int(line.split()[1]) for line in lines if line.startswith("tfd:")][:_MOST_FILES]
    return []


def _read_memory(pid: int, address: int, size: int) -> bytes:
    with suppress(OSError, OverflowError, ValueError), Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        memory.seek(address)
        return memory.read(size) or b""
    return b""


def _name_of_file(pid: int, file: str | int, peers: Mapping[str, str]) -> str:
    if isinstance(file, str):
        return f"{_kind(proc.path_of(pid, file))}{file}" if file else ""
    path = f"/proc/{pid}/fd/{file}"
    try:
        target = str(Path(path).readlink())
    except OSError:
        return ""
    if target.startswith("socket:["):
        peer = peers.get(target[8:-1])
        return f"a connection to {peer}" if peer else "a socket"
    if target.startswith("pipe:["):
        return "a pipe"
    return f"{_kind(path)}{target}" if target.startswith("/") else ""


def _kind(path: str) -> str:
    with suppress(OSError):
        return "the FIFO " if Path(path).is_fifo() else ""
    return ""


#: TCP connections by inode: local address, remote address, unacknowledged bytes, retransmissions in a row.
Connections = Mapping[str, tuple[str, str, int, int]]


# --- TCP connections ---------------------------------------------------------------------------------


def connections(pids: Sequence[int]) -> dict[int, Connections]:
    """Return the established TCP connections of each process. Each network namespace is read once."""
    of_network: dict[str, Connections] = {}
    found: dict[int, Connections] = {}
    for pid in pids:
        network = network_of(pid)
        if network not in of_network:
            of_network[network] = _connections_of_network(pid)
        mine = sockets(pid)
        found[pid] = {inode: ends for inode, ends in of_network[network].items() if inode in mine}
    return found


def _connections_of_network(pid: int) -> Connections:
    return {
        fields[9]: (_address(fields[1]), _address(fields[2]), int(fields[4].partition(":")[0], 16), int(fields[6], 16))
        for file in ("tcp", "tcp6")
        for fields in _tcp_sockets(pid, file, _ESTABLISHED)
    }


def _tcp_sockets(pid: int, file: str, state: str) -> Iterator[list[str]]:
    for line in (proc.read(f"/proc/{pid}/net/{file}") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == state:
            yield fields


def connects(pid: int) -> bool:
    """Return True if a connection that the process opened has no answer yet."""
    mine = sockets(pid)
    return any(fields[9] in mine for file in ("tcp", "tcp6") for fields in _tcp_sockets(pid, file, _CONNECTS))


def to_other_addresses(of: Connections) -> tuple[tuple[str, str], ...]:
    """Return both ends of connections to other addresses. Other hosts identify this process by them."""
    found = {(this, other) for this, other, *_ in of.values() if this.rpartition(":")[0] != other.rpartition(":")[0]}
    return tuple(sorted(found)[:_MOST_CONNECTIONS])


def sockets(pid: int) -> set[str]:
    """Return the inodes of its sockets."""
    return {file[8:-1] for file in proc.open_files(pid) if file.startswith("socket:[")}


def listening(pid: int, *, any_address: bool = False) -> set[int]:
    """Return the TCP ports on which it listens; with ``any_address``, only those on all IPv6 addresses."""
    mine, found = sockets(pid), set()
    for file in ("tcp6",) if any_address else ("tcp", "tcp6"):
        for fields in _tcp_sockets(pid, file, _LISTENS):
            address, _, port = fields[1].rpartition(":")
            if fields[9] in mine and (not any_address or not address.strip("0")):
                found.add(int(port, 16))
    return found


def listener(port: int) -> int | None:
    """Return the process on this host that listens on a TCP port, or None if none is visible."""
    return next((pid for pid in proc.pids() if port in listening(pid)), None)


def _address(text: str) -> str:
    """Return ``127.0.0.1:29500`` for 0100007F:733C, and IPv4-mapped IPv6 addresses as IPv4."""
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    raw = b"".join(words)
    if len(raw) == 16 and raw[:12] == b"\0" * 10 + b"\xff\xff":
        raw = raw[12:]
    if len(raw) == 4:
        return f"{'.'.join(map(str, raw))}:{int(port, 16)}"
    groups = ":".join(raw[at : at + 2].hex() for at in range(0, 16, 2))
    return f"[{groups}]:{int(port, 16)}"


def unacknowledged(
    before: Connections, after: Connections, rank_at: Mapping[tuple[str, str], int]
) -> tuple[Unacknowledged, ...]:
    """Return data that was unacknowledged in both samples. ``rank_at``: ranks by their (local, remote) addresses."""
    found = []
    for inode, (this, other, queued, retransmissions) in after.items():
        if queued and inode in before and before[inode][2]:
            peer = rank_at.get((other, this))
            found.append(Unacknowledged(peer=other, peer_rank=peer, bytes=queued, retransmissions=retransmissions))
    return tuple(found)


_SECTION, _SYMBOL, _POINTER = struct.Struct("<4xI8xQQQI"), struct.Struct("<IBBHQ8x"), struct.Struct("<Q")
_ELF64_LITTLE_ENDIAN, _PIE_OR_LIBRARY, _DYNAMIC_SYMBOLS = b"\x7fELF\x02\x01", 3, 11
_LIBC = re.compile(r"/(?:libc\.so\.6|libc-[\d.]+\.so|ld-musl-\w+\.so\.1|libc\.musl-\w+\.so\.1)$")
_LARGEST_FILE_BYTES = 1 << 26
_MOST_VARIABLES, _PAGE, _LONGEST_BYTES = 4096, 4096, 1 << 17


def current_environment(pid: int) -> dict[str, str] | None:
    """Return the variables of a process, including those it set itself, or None if it may not be read.

    Returns the variables at its start if its memory may not be read (ptrace(2)).
    """
    at_start = proc.environment(pid)
    if at_start is None:
        return None
    with suppress(OSError, ValueError, struct.error), Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for at in _environ_pointers(pid):
            if variables := dict(_variables(memory.fileno(), at)):
                return variables
    return at_start


def _environ_pointers(pid: int) -> Iterator[int]:
    starts: dict[str, int] = {}
    for line in (proc.read(f"/proc/{pid}/maps") or "").splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and int(words[2], 16) == 0:
            starts.setdefault(words[5], int(words[0].partition("-")[0], 16))
    executable = str(Path(f"/proc/{pid}/exe").readlink())
    for path, start in starts.items():
        if path == executable or _LIBC.search(path):
            with suppress(OSError, struct.error):
                yield from _environ_in_file(proc.path_of(pid, path), start)


def _environ_in_file(path: str, start: int) -> Iterator[int]:
    with Path(path).open("rb") as file:
        data = file.read(_LARGEST_FILE_BYTES)
    if not data.startswith(_ELF64_LITTLE_ENDIAN):
        return
    base = start if struct.unpack_from("<H", data, 16)[0] == _PIE_OR_LIBRARY else 0
    (table,), (number,) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<H", data, 60)
    sections = [_SECTION.unpack_from(data, table + at * 64) for at in range(number)]
    for kind, _, offset, size, names in sections:
        if kind != _DYNAMIC_SYMBOLS:
            continue
        names_at = sections[names][2]
        for name, _, _, section, value in _SYMBOL.iter_unpack(data[offset : offset + size]):
            if section and data.startswith(b"environ\0", names_at + name):
                yield base + value


def _variables(memory: int, pointer: int) -> Iterator[tuple[str, str]]:
    (array,) = _POINTER.unpack(os.pread(memory, 8, pointer))
    for at in range(_MOST_VARIABLES):
        (text,) = _POINTER.unpack(os.pread(memory, 8, array + 8 * at))
        if not text:
            return
        name, is_one, value = _text(memory, text).partition("=")
        if is_one:
            yield name, value


def _text(memory: int, at: int) -> str:
    """Read page by page, because the page after the text may not exist."""
    raw = b""
    while b"\0" not in raw and len(raw) < _LONGEST_BYTES:
        raw += os.pread(memory, _PAGE - (at + len(raw)) % _PAGE, at + len(raw))
    return raw.partition(b"\0")[0].decode("utf-8", "replace")
