"""What the kernel says that a process waits for: the call in which its main thread is, and the file, FIFO or peer."""

import platform
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ddp_doctor.knowledge.system_calls import CALLS, Call
from ddp_doctor.sources import proc

_LONGEST_PATH = 512
_MOST_FILES = 3
_POLLFD = struct.Struct("=ihh")  # poll(2): descriptor, what is waited for, what came


def waits_for(pid: int, peers: Mapping[str, str]) -> str:
    """``read from the FIFO /data/in``, ``flock of /data/lock``; empty where the kernel does not say, or it runs.

    ``peers``: the addresses at the other ends of sockets, by their inodes.
    """
    words = (proc.read(f"/proc/{pid}/syscall") or "").split()
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
    """``the FIFO /data/in``, ``a connection to 10.0.0.5:443``."""
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
