"""Faults of machines, processes, names, interfaces, and of what differs between hosts."""

import contextlib
import itertools
import os
import signal
import sys
from pathlib import Path

from tests.lab import overlays
from tests.lab.hosts import Host, Lab
from tests.lab.planted import Planted
from tests.lab.processes import state
from tests.waiting import wait_until

WIRE = Path(__file__).with_name("wire.py")
_numbers = itertools.count()


# Machines and processes


def power_off(lab: Lab, host: Host) -> Planted:
    """Remove the host without notice: first its link, then all its processes. Undone by a fresh boot."""
    lab.switch.ip(f"link set {lab.port(host)} down")
    host.halt()
    return Planted(lambda: lab.boot(host))


def stop(host: Host, name: str) -> Planted:
    """The process of this name is stopped by SIGSTOP; undone by SIGCONT."""
    pid = host.wait_for_process(name)
    _stop([pid])
    return Planted(lambda: _send(signal.SIGCONT, [pid]))


def stop_all(host: Host) -> Planted:
    """Stop all current processes of the host with SIGSTOP; its kernel still answers."""
    pids = host.pids()
    _stop(pids)
    return Planted(lambda: _send(signal.SIGCONT, pids))


def kill(host: Host, name: str) -> Planted:
    """The process of this name is killed; there is no undoing."""
    os.kill(host.wait_for_process(name), signal.SIGKILL)
    return Planted()


def kill_all(host: Host) -> Planted:
    """Kill all current processes of the host; its kernel still answers. Cannot be undone."""
    _send(signal.SIGKILL, host.pids())
    return Planted()


def starved(host: Host, percent: float = 10.0) -> Planted:
    """Limit all processes of the host, including new ones, to this share of one processor."""
    folder = next(it for it in map(Path, ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup")) if it.is_dir())
    group = folder / f"ddp-lab-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    period, quota = 100_000, round(1_000 * percent)
    is_v1 = (group / "cpu.cfs_quota_us").exists()
    (group / ("cpu.cfs_quota_us" if is_v1 else "cpu.max")).write_text(f"{quota}" if is_v1 else f"{quota} {period}")
    for pid in host.pids():
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(f"{pid}")

    def undo() -> None:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (folder / "cgroup.procs").write_text(pid)
        group.rmdir()

    return Planted(undo)


def held_port(host: Host, port: int = 29400) -> Planted:
    """Let another program listen on the port without ever answering."""
    program = host.start((sys.executable, "-S", WIRE, "mute", str(port)))
    program.wait_for_output("ready")
    return Planted(program.wait, program.kill)


# Names, addresses and interfaces


def loopback_name(host: Host, address: str = "127.0.1.1") -> Planted:
    """The host's own name means a loopback address to itself, as Debian's installer writes it."""
    lines = host.read_hosts().splitlines()
    others = [line for line in lines if host.name not in line.split()[1:]]
    return _hosts_file(host, [*others, f"{address} {host.name}"])


def forget_name(host: Host, name: str) -> Planted:
    """A name does not resolve on the host."""
    return _hosts_file(host, [line for line in host.read_hosts().splitlines() if name not in line.split()[1:]])


def names_of_family(lab: Lab, host: Host, family: int) -> Planted:
    """On this host all names mean IPv4 (4) or IPv6 (6) addresses only."""
    before = host.read_hosts()
    lab.write_names(host, (family,))
    return Planted(lambda: host.write_hosts(before))


def only_family(lab: Lab, host: Host, family: int) -> Planted:
    """Keep only the IPv4 (4) or IPv6 (6) addresses of the host's eth0, including in all hosts' /etc/hosts."""
    kept, before = host.addresses["eth0"], {it: it.read_hosts() for it in lab.hosts}
    gone = [address for address in kept if (6 if ":" in address else 4) != family]
    host.ip(*(f"address delete {address} dev eth0" for address in gone))
    host.addresses["eth0"] = tuple(address for address in kept if address not in gone)
    for other in lab.hosts:
        lab.write_names(other)

    def undo() -> None:
        host.ip(*(f"address add {address} dev eth0" for address in gone))
        host.addresses["eth0"] = kept
        for other, text in before.items():
            other.write_hosts(text)

    return Planted(undo)


def bridge_interface(host: Host, name: str = "docker0", address: str = "172.17.0.1/16") -> Planted:
    """Add an interface without a connection, such as Docker's bridge without containers."""
    host.ip(f"link add {name} type bridge", f"address add {address} dev {name}", f"link set {name} up")
    return Planted(lambda: host.ip(f"link delete {name}"))


def uncabled_interface(host: Host, name: str = "ib0", address: str = "10.99.0.1/24") -> Planted:
    """An interface with a carrier and no host at the other end."""
    host.ip(
        f"link add {name} type veth peer name {name}-end",
        f"address add {address} dev {name}",
        f"link set {name} up",
        f"link set {name}-end up",
    )
    return Planted(lambda: host.ip(f"link delete {name}"))


def renamed_interface(host: Host, nic: str = "eth1", name: str = "ens5") -> Planted:
    """An interface has another name there than on the other hosts."""

    def rename(old: str, new: str) -> None:
        host.ip(f"link set {old} down", f"link set {old} name {new}", f"link set {new} up")

    rename(nic, name)
    return Planted(lambda: rename(name, nic))


# Differences between hosts


def environment(host: Host, assignment: str) -> Planted:
    """Set ``NAME=VALUE`` in the environment of all processes started on the host from now on."""
    name, _, value = assignment.partition("=")
    return _environment(host, {name: value})


def skewed_clock(host: Host, seconds: int = 3600) -> Planted:
    """Skew the clock of all processes started on the host from now on."""
    folder = host.folder / f"overlay{next(_numbers)}"
    return _environment(host, overlays.skewed_clock(folder, seconds))


def misdeed(host: Host, what: str = "wrong", one_in: int = 1) -> Planted:
    """Let ranks of the host change sent data (wrong), hang or die; or only one process in ``one_in``."""
    return _environment(host, overlays.misdeed(host.folder / f"overlay{next(_numbers)}", what, one_in))


def other_version(host: Host, package: str, version: str) -> Planted:
    """Let a Python package report another version to all processes started from now on."""
    folder = overlays.other_version(host.folder / f"overlay{next(_numbers)}", package, version)
    return _environment(host, {"PYTHONPATH": f"{folder}:{host.environment['PYTHONPATH']}"})


def _hosts_file(host: Host, lines: list[str]) -> Planted:
    before = host.read_hosts()
    host.write_hosts("\n".join([*lines, ""]))
    return Planted(lambda: host.write_hosts(before))


def _environment(host: Host, changes: dict[str, str]) -> Planted:
    before = {name: host.environment.get(name) for name in changes}
    host.environment.update(changes)

    def undo() -> None:
        for name, value in before.items():
            del host.environment[name]
            if value is not None:
                host.environment[name] = value

    return Planted(undo)


def _stop(pids: list[int]) -> None:
    """Stop the processes and wait until they are stopped."""
    _send(signal.SIGSTOP, pids)
    wait_until(lambda: all(state(pid) in ("T", "Z", "") for pid in pids), "the processes are stopped")


def _send(number: int, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
