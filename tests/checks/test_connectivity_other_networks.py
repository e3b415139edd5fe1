"""The probe's measurements of other networks that all nodes share; recordings test when one is recommended."""

import errno
import time
from collections.abc import Mapping
from typing import Any

import pytest

from ddp_doctor.checks.cluster.connectivity import CHECK, probe
from ddp_doctor.facts.cluster import ConnectivityFact
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.context import OtherWay, Peer
from ddp_doctor.model.trial import Attempt, Experiment
from ddp_doctor.sources.sockets import Listener
from tests.checks.test_connectivity import TOKEN, RealContext, Wire, WireContext, oserror
from tests.readings import finding_of, findings_of
from tests.recordings import load
from tests.waiting import LIMIT_S

ETH1 = OtherWay(network="10.1.0.0/24", interface="eth1", peer_interface="ens5", address="10.1.0.1")


def look(wires: Mapping[str, Wire | OSError], *others: OtherWay) -> tuple[WireContext, ConnectivityFact]:
    peer = Peer(1, "node1", 40000, "10.0.0.1", "10.0.0.1", others)
    context = WireContext(peers=(peer,), wires=wires)
    return context, probe(context)


def test_peer_is_measured_over_its_other_address_with_both_interface_names():
    _, fact = look({"10.0.0.1": Wire(), "10.1.0.1": Wire(bytes_per_s=2e8, round_trip_s=0.002)}, ETH1)

    (other,) = fact.peers[0].others
    assert (other.network, other.interface, other.peer_interface) == ("10.1.0.0/24", "eth1", "ens5")
    assert (other.outcome, other.round_trips, other.round_trip_min_s) == ("ok", path_quality.OTHER_ROUND_TRIPS, 0.002)
    assert other.rate == pytest.approx(2e8)
    assert other.retransmits == 0


@pytest.mark.parametrize(("number", "outcome"), [(errno.ETIMEDOUT, "timed_out"), (errno.ECONNREFUSED, "refused")])
def test_dead_second_address_does_not_affect_the_address_in_use(number, outcome):
    context, fact = look({"10.0.0.1": Wire(), "10.1.0.1": oserror(number)}, ETH1)

    assert fact.peers[0].outcome == "ok"
    assert fact.peers[0].throughput_bytes_per_s
    assert (fact.peers[0].others[0].outcome, fact.peers[0].others[0].rate) == (outcome, 0.0)
    assert context.dials.count("10.1.0.1") == (path_quality.OTHER_DIALS if number == errno.ETIMEDOUT else 1)


def test_network_that_drops_large_packets_or_breaks_is_broken():
    _, fact = look({"10.0.0.1": Wire(), "10.1.0.1": Wire(largest=1460)}, ETH1)
    assert fact.peers[0].others[0].outcome == "broken"
    _, fact = look({"10.0.0.1": Wire(), "10.1.0.1": Wire(breaks_after=3)}, ETH1)
    assert fact.peers[0].others[0].outcome == "broken"


def test_a_peer_that_is_slower_than_its_other_address_is_measured_again():
    _, fact = look({"10.0.0.1": Wire(bytes_per_s=1e7), "10.1.0.1": Wire()}, ETH1)
    assert len(fact.peers[0].throughput_bytes_per_s) == 2 * path_quality.SAMPLES
    _, fact = look({"10.0.0.1": Wire(), "10.1.0.1": Wire(bytes_per_s=1e12)}, ETH1)
    assert len(fact.peers[0].throughput_bytes_per_s) == path_quality.SAMPLES


def test_every_line_is_closed():
    context, _ = look({"10.0.0.1": Wire(), "10.1.0.1": Wire(busy=True)}, ETH1)
    assert all(line.closed for wire in context.wires.values() if isinstance(wire, Wire) for line in wire.lines)


def test_real_sockets_answer_at_two_addresses_and_a_dead_one_is_fast():
    listener = Listener()
    listener.admit(TOKEN)
    dead = replace_way(ETH1, network="192.0.2.0/24", address="127.0.0.3")
    peers = (Peer(1, "node1", listener.port, "127.0.0.1", "", (replace_way(ETH1, address="127.0.0.2"), dead)),)
    context = Deaf(peers=peers, deadline=time.monotonic() + LIMIT_S)
    try:
        fact = probe(context)
    finally:
        listener.stop()

    assert [one.outcome for one in fact.peers[0].others] == ["ok", "timed_out"]
    assert fact.peers[0].others[0].throughput_bytes_per_s
    assert 0 < context.deaf_s < 4


class Deaf(RealContext):
    """A context that gets no answer from 127.0.0.3; ``deaf_s`` is the time that a real socket would have waited."""

    deaf_s = 0.0

    def dial(self, address: str, port: int, timeout_s: float) -> Any:
        if address == "127.0.0.3":
            self.deaf_s += timeout_s
            raise oserror(errno.ETIMEDOUT)
        return super().dial(address, port, timeout_s)


def replace_way(way: OtherWay, **changes: str) -> OtherWay:
    return way.model_copy(update=changes)


FASTER = (("control", 12e6), ("treatment", 2e8), ("control", 11e6), ("treatment", 3e8))
SLOWER = (("control", 12e6), ("treatment", 1e6), ("control", 11e6), ("treatment", 2e6))


@pytest.mark.parametrize(
    ("tried", "is_told"),
    [
        (FASTER, True),
        ((("control", None), ("treatment", 2e8)), True),
        (SLOWER, False),
        ((("control", 12e6), ("treatment", None)), False),
        ((), True),
    ],
)
def test_network_that_was_not_faster_in_its_trial_is_not_reported(tried: Any, is_told: bool):
    recording = load("connectivity/slower-network-by-rate-1")
    first = finding_of(CHECK, recording)
    assert first.reproduced_by is not None
    attempts = tuple(
        Attempt(arm=arm, outcome="hung" if rate is None else "passed", bytes_per_s=rate) for arm, rate in tried
    )
    experiment = Experiment(
        code="DD538", settings=first.remedies[0].settings, reproducer=first.reproduced_by, attempts=attempts
    )

    tried_out = recording.model_copy(update={"experiments": (experiment,)})

    assert [one.severity for one in findings_of(CHECK, tried_out)] == [Severity.ERROR] * is_told
