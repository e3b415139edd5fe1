"""Doors that a job itself opened: the servers of torch's workers, and NCCL's RAS. Each call is bounded, and only reads.

torch.distributed.debug and elastic.control_plane start a server in each rank (torch 2.10, c10d/control_plane), which
answers also while the script hangs: ``POST /handler/fr_trace_json`` and ``dump_traceback``. The server of a rank is
told by its socket: the only one of the rank that listens on all addresses of IPv6 and is no store of the job.
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
#: Of a unix socket its path, else a port of this host.
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
    """All parts of an answer. Raises TimeoutError where it is not whole at the moment ``end``."""
    answer = b""
    while len(answer) < _LARGEST_BYTES and (more := part(65536)):
        answer += more
        if time.monotonic() > end:
            raise TimeoutError
    return answer


def worker_servers(ranks: Iterable[Candidate], end: float) -> dict[int, Address]:
    """The servers of these ranks that answer until the moment ``end`` of time.monotonic(), by pid."""
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
    """Each rank's flight recorder as JSON, by pid; without those that do not answer in time."""
    return _from_all(servers, "POST", "/handler/fr_trace_json", end)


def tracebacks(servers: Mapping[int, Address], end: float) -> dict[int, tuple[str, ...]]:
    """Each rank's main thread, outermost first. faulthandler prints it last, its innermost frame first."""
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
    """The port of NCCL's RAS, where one of these ranks listens on it: those of several users' jobs collide."""
    for rank in ranks:
        port = rank.env.get("NCCL_RAS_ADDR", "").rpartition(":")[2]
        wanted = int(port) if port.isdigit() else _RAS_PORT
        ports = listening(rank.pid) - {proc.number(rank.env, "MASTER_PORT")}
        if wanted in ports and network_of(rank.pid) == network_of(os.getpid()):
            return wanted
    return None


def ras_status(port: int, end: float, *, as_json: bool = False) -> str:
    """What RAS says of the job, "VERBOSE STATUS"; empty where it does not answer in time. As JSON from 2.28.7 on."""
    patience_s = min(_RAS_PATIENCE_S, end - time.monotonic())
    if patience_s <= 0:
        return ""
    with suppress(OSError), socket.create_connection(("localhost", port), patience_s) as connection:
        connection.sendall(b"set format json\n" * as_json + b"verbose status\n")
        return _read(connection.recv, end).decode("utf-8", "replace")
    return ""
