"""This host's network interfaces, and the names it can resolve."""

import ipaddress
import os
import socket
import threading
from queue import Empty, SimpleQueue

from ddp_doctor.model.context import Interface


def interfaces() -> tuple[Interface, ...]:
    """All interfaces by their index, as Linux lists them to getifaddrs(3), each with IPv4 first.

    Raises OSError.
    """
    import psutil

    addresses, stats = psutil.net_if_addrs(), psutil.net_if_stats()
    found = []
    for name, stat in ((name, stats[name]) for _, name in socket.if_nameindex() if name in stats):
        flags = getattr(stat, "flags", "").split(",")  # psutil 5.9.3 and newer
        ours = [
            address
            for address in addresses.get(name, ())
            if address.family in (socket.AF_INET, socket.AF_INET6)
        ]
        found.append(
            Interface(
                name=name,
                up=stat.isup or "up" in flags,
                running=stat.isup,  # psutil means IFF_RUNNING
                loopback="loopback" in flags or name == "lo",
                mtu=stat.mtu,
                speed_mbps=stat.speed or None,
                addresses=tuple(
                    f"{address.address}/{_prefix_length(address.netmask, address.family)}" for address in ours
                ),
            )
        )
    return tuple(found)


def _prefix_length(netmask: str | None, family: int) -> int:
    """24 for 255.255.255.0; a point-to-point address without a mask is a network of one address."""
    if netmask is None:
        return 32 if family == socket.AF_INET else 128
    return int(ipaddress.ip_address(netmask)).bit_count()


def resolve(name: str, timeout_s: float) -> tuple[str, ...]:
    """The addresses of ``name`` as getaddrinfo(3) gives them to a TCP server, without repetitions.

    A dead DNS server blocks the call for many seconds, so it is made in a thread that is left alone
    past the time. Raises OSError: socket.gaierror where there are none, TimeoutError past the time.
    """
    answers: SimpleQueue[tuple[str, ...] | OSError] = SimpleQueue()
    threading.Thread(target=_resolve, args=(name, answers), daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except Empty:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _resolve(name: str, answers: "SimpleQueue[tuple[str, ...] | OSError]") -> None:
    try:
        found = socket.getaddrinfo(os.fsencode(name), None, type=socket.SOCK_STREAM)
    except OSError as error:
        answers.put(error)
    else:
        answers.put(tuple(dict.fromkeys(str(info[4][0]) for info in found)))
