"""Connect to the endpoint of a run with plain sockets, to distinguish the kinds of failure.

torch's own client reports "timed out after 60000ms" whether a port is refused, dropped or silent.
"""

import errno
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from ddp_doctor.facts.cluster import AttemptSeen
from ddp_doctor.knowledge.deadlines import CONNECT_S, UNREACHABLE_S, UNRESOLVED_S
from ddp_doctor.sources import network

_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETDOWN}
_NOT_YET = {
    "refused": "no process listens yet on",
    "unresolved": "the name does not resolve of",
    "timed_out": "no answer yet from",
}
_PAUSE_S = 0.25
#: The time for a server's greeting to arrive after its connection.
_GREETS_S = 1.0
#: Not in the socket module: linux/in.h, linux/in6.h (IP_RECVERR in ip(7)), and ee_origin of linux/errqueue.h.
_IP_RECVERR, _IPV6_RECVERR = 11, 25
_FROM_ICMP = (2, 3)
#: (type, code) of ICMP (RFC 1122 3.2.2.1, RFC 1812 5.2.7.1) and ICMPv6 (RFC 4443 3.1) that only a packet filter sends
#: in answer to a TCP connection: prohibited, or a protocol or port unreachable (a closed port is reset).
_FILTERS_SAY = {(3, 2), (3, 3), (3, 9), (3, 10), (3, 13), (1, 1), (1, 4), (1, 5), (1, 6)}


@dataclass(frozen=True)
class Approach:
    """The path to the endpoint: ``outcome`` of the last attempt, or unresolved; ``met_at`` is this end's address."""

    outcome: str
    addresses: tuple[str, ...] = ()
    attempts: tuple[AttemptSeen, ...] = ()
    error: str = ""
    address: str = ""  # the address that connected
    met_at: str = ""

    @property
    def is_rejected(self) -> bool:
        """True if a packet filter rejected a connection."""
        return any(attempt.rejected_by for attempt in self.attempts)


def resolve(host: str, timeout_s: float = 5.0) -> tuple[tuple[str, ...], str]:
    """Return the addresses of a name, in the resolver's order, or the resolver's error; bounded."""
    try:
        return network.resolve(host, timeout_s), ""
    except TimeoutError:
        return (), f"no answer from the resolver within {timeout_s:g} s"
    except (OSError, UnicodeError) as error:
        return (), getattr(error, "strerror", None) or str(error)


def is_mine(addresses: tuple[str, ...]) -> bool:
    """Return True if one of these addresses is this host's: a socket can be bound to it."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with suppress(OSError), socket.socket(family) as probe:
            probe.bind((address, 0))
            return True
    return False


def approach(host: str, port: int, until: float, tell: Callable[[str], None], timeout_s: float = CONNECT_S) -> Approach:
    """Connect, with retries while they make sense: the port of a head that starts late is refused at first."""
    alike: list[tuple[float, Approach]] = []  # the last rounds of one kind
    while True:
        now = time.monotonic()
        last = _one_round(host, port, min(timeout_s, max(until - now, 1.0)))
        if last.outcome == "connected":
            return last
        if last.outcome == "timed_out" and alike and alike[-1][1].is_rejected:
            # A firewall answers at most once per second (icmp(7), icmp_ratelimit): its last answer counts.
            last = alike[-1][1]
        if alike and _kind(alike[-1][1]) != _kind(last):
            alike = []
        alike.append((now, last))
        patience = {"unresolved": UNRESOLVED_S, "no way": UNREACHABLE_S}.get(_kind(last), float("inf"))
        if time.monotonic() > min(until, alike[0][0] + patience):
            return next((earlier for _, earlier in reversed(alike) if earlier.outcome == "unreachable"), last)
        tell(f"{_NOT_YET.get(last.outcome, 'no way yet to')} {host}:{port}")
        time.sleep(_PAUSE_S)


def _kind(way: Approach) -> str:
    return "no way" if way.outcome in ("timed_out", "unreachable") else way.outcome


def _one_round(host: str, port: int, timeout_s: float) -> Approach:
    addresses, error = resolve(host)
    if not addresses:
        return Approach("unresolved", error=error)
    attempts: list[AttemptSeen] = []
    for address in addresses:
        attempt, met_at = _connect(address, port, timeout_s)
        attempts.append(attempt)
        if attempt.outcome == "connected":
            return Approach("connected", addresses, tuple(attempts), "", address, met_at)
    # The clearest outcome among several addresses decides: a refusal comes from a host that is up.
    order = ("refused", "timed_out", "unreachable")
    clearest = min(attempts, key=lambda attempt: order.index(attempt.outcome))
    return Approach(clearest.outcome, addresses, tuple(attempts), clearest.error)


def _connect(address: str, port: int, timeout_s: float) -> tuple[AttemptSeen, str]:
    line: socket.socket | None = None
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        line = socket.socket(family, kind, protocol)
        line.settimeout(timeout_s)
        with suppress(OSError):  # keeps what ICMP answers
            is_6 = family == socket.AF_INET6
            option = (socket.IPPROTO_IPV6, _IPV6_RECVERR, 1) if is_6 else (socket.IPPROTO_IP, _IP_RECVERR, 1)
            line.setsockopt(*option)
        line.connect(where)
        return AttemptSeen(address=address, outcome="connected"), str(line.getsockname()[0])
    except TimeoutError:
        words = f"no answer within {timeout_s:.0f} s"
        return AttemptSeen(address=address, outcome="timed_out", error=words), ""
    except OSError as error:
        outcome: Literal["refused", "unreachable", "timed_out"] = "refused"
        if error.errno in _NO_ROUTE:
            outcome = "unreachable"
        elif error.errno == errno.ETIMEDOUT:
            outcome = "timed_out"
        words = error.strerror or os.strerror(error.errno or 0)
        by = _rejected_by(line, address) if line else ""
        return AttemptSeen(address=address, outcome=outcome, error=words, rejected_by=by), ""
    finally:
        if line is not None:
            line.close()


def greeting(address: str, port: int) -> str:
    """Return the first line that a server sends to a silent client, like a mail server; a TCPStore sends nothing."""
    with suppress(OSError), socket.create_connection((address, port), timeout=CONNECT_S) as line:
        line.settimeout(_GREETS_S)
        sent = line.recv(200).decode(errors="replace").splitlines()
        return next((text.strip() for text in sent if text.strip()), "")
    return ""


def _rejected_by(line: socket.socket, address: str) -> str:
    """Return the address of the packet filter that rejected this connection; empty if there is no evidence of one."""
    line.setblocking(False)
    with suppress(OSError, struct.error):
        _, errors, _, _ = line.recvmsg(512, 512, socket.MSG_ERRQUEUE)
        for _, _, error in errors:  # linux/errqueue.h: struct sock_extended_err, then the sender
            origin, kind, code = struct.unpack_from("4xBBB", error)
            is_6 = line.family == socket.AF_INET6
            packed = error[24:40] if is_6 else error[20:24]  # of sockaddr_in6, sockaddr_in
            sender = socket.inet_ntop(line.family, packed)
            # A host does not report itself as unreachable.
            if origin in _FROM_ICMP and ((kind, code) in _FILTERS_SAY or sender == address):
                return sender
    return ""


def holder_of(port: int) -> str:
    """Return the program that listens on a port of this host, if this user may see it: "nc (pid 712)"."""
    import psutil

    for pid in _listeners(port):
        with suppress(psutil.Error):
            return f"{psutil.Process(pid).name()} (pid {pid})" if pid else "another user's program"
    return ""


def is_held_by_launcher(port: int) -> bool:
    """Return True if an ancestor of this process listens there: torchrun, or a script with its own store."""
    import psutil

    with suppress(psutil.Error):
        return not {parent.pid for parent in psutil.Process().parents()}.isdisjoint(_listeners(port))
    return False


def _listeners(port: int) -> list[int | None]:
    """Return the processes that listen on a port of this host; None for a process that this user may not see."""
    import psutil

    with suppress(psutil.Error, OSError):
        return [
            connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
        ]
    return []
