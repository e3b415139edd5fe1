"""Data sources that a job itself opened: torch's worker servers, and NCCL's RAS. Each call only reads, with a timeout.

torch.distributed.debug and elastic.control_plane start a server in each rank (torch 2.10, c10d/control_plane). It
answers even while the script hangs: ``POST /handler/fr_trace_json`` and ``dump_traceback``. A rank's server is found by
its socket: the only one of the rank that listens on all IPv6 addresses and is not a store of the job.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException

from ddp_doctor.features.jobs.sources.live_process import Candidate, listening, network_of
from ddp_doctor.parse.frames import listed
from ddp_doctor.sources import proc

_PATIENCE_S = 1.5
_MOST_AT_ONCE = 8
_LARGEST_BYTES = 32 << 20
#: NCCL's RAS asks all other processes before it answers.
_RAS_PATIENCE_S = 2.5
_RAS_PORT = 28028  # NCCL 2.24, NCCL_RAS_ADDR
#: The path of a unix socket, or a port of this host.
Address = str | int


class _Connection(HTTPConnection):
    def __init__(self, address: Address, patience_s: float) -> None:
        super().__init__("localhost", address if isinstance(address, int) else 80, timeout=patience_s)
        self._address, self._patience_s = address, patience_s

    def connect(self) -> None:
        if isinstance(self._address, int):
            self.sock = socket.create_connection(("::1", self._address), self._patience_s)
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self._patience_s)
        self.sock.connect(self._address)


def _asked(address: Address, method: str, path: str, end: float) -> bytes | None:
    if (left_s := end - time.monotonic()) <= 0:
        return None
    connection = _Connection(address, min(_PATIENCE_S, left_s))
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return _read(answer.read1, end) if answer.status == 200 else None
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _read(part: Callable[[int], bytes], end: float) -> bytes:
    """Return the entire answer. Raises TimeoutError if it is incomplete at the time ``end``."""
    answer = b""
    while len(answer) < _LARGEST_BYTES and (more := part(65536)):
        answer += more
        if time.monotonic() > end:
            raise TimeoutError
    return answer


def worker_servers(ranks: Iterable[Candidate], end: float) -> dict[int, Address]:
    """Return the servers of these ranks that answer before ``end`` of time.monotonic(), by pid."""
    likely: dict[int, Address] = {}
    for rank in ranks:
        path = rank.env.get("TORCH_WORKER_SERVER_SOCKET", "")
        if path.startswith("/"):
            likely[rank.pid] = proc.path_of(rank.pid, path)
        elif network_of(rank.pid) == network_of(os.getpid()):
            ports = listening(rank.pid, any_address=True) - {proc.number(rank.env, "MASTER_PORT")}
            if len(ports) == 1:
                likely[rank.pid] = ports.pop()
    answers = _from_all(likely, "GET", "/handler/", end)
    return {pid: likely[pid] for pid, answer in answers.items() if b"fr_trace_json" in answer}


def flight_dumps(servers: Mapping[int, Address], end: float) -> dict[int, bytes]:
    """Return each rank's flight recorder as JSON, by pid, without ranks that do not answer in time."""
    return _from_all(servers, "POST", "/handler/fr_trace_json", end)


def tracebacks(servers: Mapping[int, Address], end: float) -> dict[int, tuple[str, ...]]:
    """Return each rank's main thread, outermost frame first. faulthandler prints it last, innermost frame first."""
    answers = _from_all(servers, "POST", "/handler/dump_traceback", end)
    texts = {pid: answer.decode("utf-8", "replace").rstrip() for pid, answer in answers.items()}
    return {pid: listed(text.rpartition("\n\n")[2]) for pid, text in texts.items()}


def _from_all(servers: Mapping[int, Address], method: str, path: str, end: float) -> dict[int, bytes]:
    if not servers:
        return {}
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        answers = pool.map(lambda address: _asked(address, method, path, end), servers.values())
        return {pid: answer for pid, answer in zip(servers, answers, strict=True) if answer}


def ras_port(ranks: Iterable[Candidate]) -> int | None:
    """Return the port of NCCL's RAS if one of these ranks listens on it. Jobs of several users use the same port."""
    for rank in ranks:
        port = rank.env.get("NCCL_RAS_ADDR", "").rpartition(":")[2]
        wanted = int(port) if port.isdigit() else _RAS_PORT
        ports = listening(rank.pid) - {proc.number(rank.env, "MASTER_PORT")}
        if wanted in ports and network_of(rank.pid) == network_of(os.getpid()):
            return wanted
    return None


def ras_status(port: int, end: float, *, as_json: bool = False) -> str:
    """Return the answer of RAS to "VERBOSE STATUS", empty if it does not come in time. JSON needs NCCL 2.28.7."""
    patience_s = min(_RAS_PATIENCE_S, end - time.monotonic())
    if patience_s <= 0:
        return ""
    with suppress(OSError), socket.create_connection(("localhost", port), patience_s) as connection:
        connection.sendall(b"set format json\n" * as_json + b"verbose status\n")
        return _read(connection.recv, end).decode("utf-8", "replace")
    return ""
