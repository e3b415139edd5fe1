"""Four hosts that the tests of one module share, with a program on each that answers on port 29400."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.hosts import Host, Lab, why_no_lab
from tests.lab.sshd import serve_ssh, why_no_ssh
from tests.waiting import LIMIT_S

WIRE = Path(__file__).with_name("wire.py")

#: dial(host, "node0", port=29400, size=0) -> what tests.lab.wire.dial returns
Dial = Callable[..., dict[str, object]]
Measure = Callable[[str, float], None]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := why_no_lab():
        pytest.skip(reason)
    with Lab(nodes=4, second_nic=True, ipv6="dual") as made:
        for host in made.hosts:
            answers(host)
        yield made


@pytest.fixture(scope="module")
def ssh_lab() -> Iterator[Lab]:
    """Three hosts with an sshd on each."""
    if reason := why_no_ssh():
        pytest.skip(reason)
    with Lab(nodes=3) as made:
        serve_ssh(made)
        yield made


@pytest.fixture
def two_hosts() -> Iterator[Lab]:
    """Yield two hosts that a test may damage permanently."""
    if reason := why_no_lab():
        pytest.skip(reason)
    with Lab(nodes=2) as made:
        yield made


@pytest.fixture
def dial() -> Dial:
    def run(host: Host, target: str, port: int = 29400, size: int = 0, timeout_s: float = LIMIT_S):
        argv = (sys.executable, "-S", WIRE, "dial", target, str(port), str(size), str(timeout_s))
        return json.loads(host.run(argv).stdout)

    return run


@pytest.fixture
def measure(record_property: Callable[[str, object], None]) -> Measure:
    """Keep a figure with the test's result, and show it with --capture=no."""

    def keep(what: str, seconds: float) -> None:
        record_property(what, round(seconds, 2))
        print(f"\n    {what}: {seconds:.2f} s")

    return keep


def answers(host: Host, port: int = 29400) -> None:
    """Start a server on the port of a host."""
    host.start((sys.executable, "-S", WIRE, "serve", str(port))).wait_for_output("ready")
