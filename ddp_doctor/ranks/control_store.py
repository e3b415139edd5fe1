"""The control store: the TCPStore where ddp-doctor's own ranks meet, in a separate process.

It is a process because the store's calls block in C++ past every timeout while its server is frozen. In a separate
process this does not block the agent. On a single node it listens only on the loopback address. With several nodes the
head agent hosts it on the port of the rendezvous endpoint, on every address as torchrun does, and it is used for the
node check-in.
"""

import errno
import json
import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

from ddp_doctor.knowledge.deadlines import WORKER_START_S
from ddp_doctor.probing.host_limits import loopback_problem
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.ranks.helper import Helper, HelperLost
from ddp_doctor.ranks.patience import Patience
from ddp_doctor.ranks.process import FORKSERVER_PID, die_with_parent, hand_over, set_name
from ddp_doctor.ranks.store import imported_c10d
from ddp_doctor.sources.network import interfaces

#: multiprocessing's exit code of a process if the forkserver can no longer report the real one.
_FORKSERVER_GONE = 255
#: The prefix of the agents' keys: the same in all releases with compatible agents.
PREFIX = "ddp-doctor/1"
#: Segment size in bytes, in both directions, on the store's connections: a path that drops large packets carries these,
#: so a run over such a path still ends with its finding. Inherited from the listener (tcp(7)).
_SMALL_SEGMENT = 1200
#: All addresses of this host, IPv4 and IPv6: other nodes may reach it on any of them.
ALL_ADDRESSES = ""


@dataclass(frozen=True)
class Control:
    """A running control store."""

    host: str
    port: int
    process: BaseProcess
    helper: Helper

    def stop(self) -> None:
        """Kill the store's process immediately; its data are not needed."""
        self.process.kill()
        self.process.join(1.0)


def start(server: ForkServer, run_folder: Path, host: str, port: int) -> Control:
    """Fork the store's process and wait until it listens. Port 0 selects a free port.

    Raises RuntimeError if it cannot listen, HelperLost if the process is killed or stopped.
    """
    answer_path = run_folder / "control.json"
    process = server.fork(_serve, json.dumps({"host": host, "port": port, "answer": str(answer_path)}))
    helper = Helper("the TCPStore server", process.pid or 0)
    patience = Patience(WORKER_START_S, [process.pid])
    while not patience.is_over():
        lost = helper.lost()  # checked first: an answer written before its death is still read
        with suppress(FileNotFoundError):
            answer = json.loads(answer_path.read_text())
            if answer.get("error"):
                raise RuntimeError(f"ddp-doctor's TCPStore did not start: {answer['error']}")
            return Control(host or "127.0.0.1", int(answer["port"]), process, helper)
        if lost is not None:
            process.join(0.5)
            if process.exitcode is None or not 0 < process.exitcode < _FORKSERVER_GONE:
                raise HelperLost(lost)
            last = server.log().strip().rpartition("\n")[2]
            raise RuntimeError(
                "ddp-doctor's TCPStore process exited before it accepted connections" + (f": {last}" if last else "")
            )
        time.sleep(0.02)
    process.kill()
    raise RuntimeError(
        f"ddp-doctor's TCPStore did not start within {WORKER_START_S:.0f} s"
        + (f": {problem}" if (problem := loopback_problem(interfaces)) else "")
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket on one address of this host, or on ALL_ADDRESSES. Raises OSError."""
    if host != ALL_ADDRESSES:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    try:
        server = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        server = socket.create_server(("0.0.0.0", port), backlog=1024)  # noqa: S104 - as torchrun's store
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SMALL_SEGMENT)
    return server


def _serve(argument: str) -> NoReturn:
    die_with_parent(FORKSERVER_PID)
    set_name("ddp-doctor:ctl")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    given = json.loads(argument)
    host = given["host"] or "127.0.0.1"
    try:
        listener = listen(given["host"], given["port"])
        port = listener.getsockname()[1]
        fields = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
        try:  # it serves until it is collected, and this function does not return
            _store = imported_c10d().TCPStore(host, port, **fields)
        except Exception:  # noqa: BLE001 - torch 2.4's libuv server takes no socket of ours
            _store = imported_c10d().TCPStore(host, port, use_libuv=False, **fields)
    except Exception as error:  # noqa: BLE001 - the agent must learn of any error
        hand_over(given["answer"], {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    hand_over(given["answer"], {"port": port})
    while True:
        signal.pause()
