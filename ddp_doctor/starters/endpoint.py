"""Connecting to the endpoint of a run with plain sockets, so that each failure has its own name.

torch's own client says "timed out after 60000ms" whether a port is refused, dropped or silent.
"""

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ddp_doctor.knowledge.deadlines import CONNECT_S, UNREACHABLE_S, UNRESOLVED_S

_NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETDOWN}
_PAUSE_S = 0.25


@dataclass(frozen=True)
class Attempt:
    """How a connection to one address ended: connected, refused, timed_out, unreachable."""

    address: str
    outcome: str
    error: str = ""


@dataclass(frozen=True)
class Approach:
    """The way to the endpoint: ``outcome`` of the last attempt, or unresolved; ``met_at`` is this end's address."""

    outcome: str
    addresses: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    error: str = ""
    address: str = ""  # the one that connected
    met_at: str = ""
    waited_s: float = 0.0


def resolve(host: str, timeout_s: float = 5.0) -> tuple[tuple[str, ...], str]:
    """The addresses of a name, in the resolver's order, or the resolver's error; bounded."""
    found: list[str] = []
    errors = [f"no answer from the resolver within {timeout_s:g} s"]

    def ask() -> None:
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found.extend(dict.fromkeys(str(info[4][0]) for info in infos))
            errors[0] = ""
        except (OSError, UnicodeError) as error:
            errors[0] = getattr(error, "strerror", None) or str(error)

    thread = threading.Thread(target=ask, daemon=True)  # a dead name server blocks for tens of seconds
    thread.start()
    thread.join(timeout_s)
    return tuple(found), errors[0]


def is_mine(addresses: tuple[str, ...]) -> bool:
    """Whether one of these addresses is this host's: one that a socket may be bound to."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with suppress(OSError), socket.socket(family) as probe:
            probe.bind((address, 0))
            return True
    return False


def approach(
    host: str, port: int, until: float, tell: Callable[[str], None], timeout_s: float = CONNECT_S
) -> Approach:
    """Connect, again and again while that makes sense: the port of a head that starts late is refused at first."""
    started = time.monotonic()
    alike: list[tuple[float, Approach]] = []  # the last rounds of one kind
    while True:
        now = time.monotonic()
        last = _one_round(host, port, min(timeout_s, max(until - now, 1.0)), now - started)
        if last.outcome == "connected":
            return last
        if alike and _kind(alike[-1][1]) != _kind(last):
            alike = []
        alike.append((now, last))
        patience = {"unresolved": UNRESOLVED_S, "no way": UNREACHABLE_S}.get(_kind(last), float("inf"))
        if time.monotonic() > min(until, alike[0][0] + patience):
            # A firewall answers at most once a second (icmp(7), icmp_ratelimit): one answer is enough.
            return next((earlier for _, earlier in reversed(alike) if earlier.outcome == "unreachable"), last)
        tell(f"{_words(last.outcome)} {host}:{port}")
        time.sleep(_PAUSE_S)


def _kind(way: Approach) -> str:
    return "no way" if way.outcome in ("timed_out", "unreachable") else way.outcome


def _words(outcome: str) -> str:
    return {
        "refused": "nobody listens yet on",
        "unresolved": "the name does not resolve of",
        "timed_out": "no answer yet from",
    }.get(outcome, "no way yet to")


def _one_round(host: str, port: int, timeout_s: float, waited_s: float) -> Approach:
    addresses, error = resolve(host)
    if not addresses:
        return Approach("unresolved", error=error, waited_s=waited_s)
    attempts: list[Attempt] = []
    for address in addresses:
        attempt, met_at = _connect(address, port, timeout_s)
        attempts.append(attempt)
        if attempt.outcome == "connected":
            return Approach("connected", addresses, tuple(attempts), "", address, met_at, waited_s)
    # Of two addresses the clearest outcome decides: a refusal comes from a host that is up.
    order = ("refused", "timed_out", "unreachable")
    clearest = min(attempts, key=lambda attempt: order.index(attempt.outcome))
    return Approach(clearest.outcome, addresses, tuple(attempts), clearest.error, waited_s=waited_s)


def _connect(address: str, port: int, timeout_s: float) -> tuple[Attempt, str]:
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as line:
            return Attempt(address, "connected"), str(line.getsockname()[0])
    except TimeoutError:
        return Attempt(address, "timed_out", f"no answer within {timeout_s:.0f} s"), ""
    except OSError as error:
        outcome = "refused"
        if error.errno in _NO_ROUTE:
            outcome = "unreachable"
        elif error.errno == errno.ETIMEDOUT:
            outcome = "timed_out"
        return Attempt(address, outcome, error.strerror or os.strerror(error.errno or 0)), ""


def holder_of(port: int) -> str:
    """The program that listens on a port of this host, as far as this user may see it: "nc (pid 712)"."""
    import psutil

    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                name = psutil.Process(connection.pid).name() if connection.pid else ""
                return f"{name} (pid {connection.pid})" if connection.pid else "another user's program"
    return ""
