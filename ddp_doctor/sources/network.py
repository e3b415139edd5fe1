"""This host's network interfaces, the names it can resolve, and its packet filter, which only root may read."""

import ipaddress
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue

from ddp_doctor.facts.cluster import ClosedPort
from ddp_doctor.model.context import Interface
from ddp_doctor.parse.packet_filter import closed_in_iptables, closed_in_nft
from ddp_doctor.sources.commands import DEFAULT_PATH, run_command


def interfaces() -> tuple[Interface, ...]:
    """Return all interfaces by index, as Linux lists them to getifaddrs(3), each with IPv4 first. Raises OSError."""
    import psutil

    addresses, stats = psutil.net_if_addrs(), psutil.net_if_stats()
    found = []
    for name, stat in ((name, stats[name]) for _, name in socket.if_nameindex() if name in stats):
        flags = getattr(stat, "flags", "").split(",")  # psutil 5.9.3 and newer
        ours = [address for address in addresses.get(name, ()) if address.family in (socket.AF_INET, socket.AF_INET6)]
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
    """Return 24 for 255.255.255.0; a point-to-point address without a mask is a network of one address."""
    if netmask is None:
        return 32 if family == socket.AF_INET else 128
    return int(ipaddress.ip_address(netmask)).bit_count()


def resolve(name: str | bytes, timeout_s: float) -> tuple[str, ...]:
    """Return the addresses of ``name`` as getaddrinfo(3) gives them to a TCP server, without repetitions.

    A dead DNS server blocks the call for many seconds, so it is made in a thread that is abandoned after the timeout.
    Raises OSError: socket.gaierror without an address, TimeoutError after the timeout. Raises UnicodeError if ``name``
    is text that cannot be a host name. Bytes are passed on unchanged.
    """
    answers: SimpleQueue[tuple[str, ...] | OSError | UnicodeError] = SimpleQueue()
    threading.Thread(target=_resolve, args=(name, answers), daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except Empty:
        raise TimeoutError(f"no answer within {timeout_s:g} s") from None
    if isinstance(answer, OSError | UnicodeError):
        raise answer
    return answer


def _resolve(name: str | bytes, answers: "SimpleQueue[tuple[str, ...] | OSError | UnicodeError]") -> None:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        answers.put(error)
    else:
        answers.put(tuple(dict.fromkeys(str(info[4][0]) for info in found)))


#: Time limit of one command. Nodes of Kubernetes have thousands of rules; output after the limit is not read.
_PATIENCE_S = 2.0
_LONGEST = 200  # of a chain's name


def closed_by(port: int, addresses: Sequence[str], env: Mapping[str, str]) -> ClosedPort | None:
    """Return the chain that certainly closes a TCP port for all hosts that dial these addresses, or None if unknown.

    firewalld and ufw make their rules with nft or iptables.
    """
    if os.geteuid() != 0:
        return None
    env = {**env, "PATH": f"{env.get('PATH', '')}:{DEFAULT_PATH}"}
    families = {"ip6" if ":" in address else "ip" for address in addresses}
    if len(families) != 1:  # a node may use either family
        families = set()
    command, found = ("nft", closed_in_nft(_output_of(env, "nft", "-j", "list", "ruleset"), port, {"inet", *families}))
    if found is None and families == {"ip"}:
        command, found = "iptables-save", closed_in_iptables(_output_of(env, "iptables-save"), port)
    if found is None:
        return None
    verdict, chain = found
    return ClosedPort.model_validate({"command": command, "chain": chain[:_LONGEST], "verdict": verdict})


def _output_of(env: Mapping[str, str], *command: str) -> str:
    return run_command(command, env, _PATIENCE_S).stdout
