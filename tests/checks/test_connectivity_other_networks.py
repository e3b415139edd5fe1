"""reach in the other networks that all nodes share: what is looked at, and when it is recommended."""

import errno
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ddp_doctor.checks.cluster.connectivity import probe
from ddp_doctor.facts.cluster import ConnectivityFact
from ddp_doctor.knowledge.network import path_quality
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.context import OtherWay, Peer
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import Attempt, Experiment
from ddp_doctor.sources.sockets import Listener
from tests.checks.test_connectivity import TOKEN, RealContext, Wire, WireContext, found, matrix, only, oserror
from tests.waiting import LIMIT_S

ETH1 = OtherWay(network="10.1.0.0/24", interface="eth1", peer_interface="ens5", address="10.1.0.1")


# --- the glance -----------------------------------------------------------------------------------


def look(wires: Mapping[str, Wire | OSError], *others: OtherWay) -> tuple[WireContext, ConnectivityFact]:
    peer = Peer(1, "node1", 40000, "10.0.0.1", "10.0.0.1", others)
    context = WireContext(peers=(peer,), wires=wires)
    return context, probe(context)


def test_a_peer_is_looked_at_over_its_other_address_with_both_interfaces_names():
    _, fact = look({"10.0.0.1": Wire(), "10.1.0.1": Wire(bytes_per_s=2e8, round_trip_s=0.002)}, ETH1)

    (other,) = fact.peers[0].others
    assert (other.network, other.interface, other.peer_interface) == ("10.1.0.0/24", "eth1", "ens5")
    assert (other.outcome, other.round_trips, other.round_trip_min_s) == ("ok", path_quality.OTHER_ROUND_TRIPS, 0.002)
    assert other.rate == pytest.approx(2e8)
    assert other.retransmits == 0


@pytest.mark.parametrize(("number", "outcome"), [(errno.ETIMEDOUT, "timed_out"), (errno.ECONNREFUSED, "refused")])
def test_a_dead_other_address_changes_nothing_about_the_one_in_use(number, outcome):
    context, fact = look({"10.0.0.1": Wire(), "10.1.0.1": oserror(number)}, ETH1)

    assert fact.peers[0].outcome == "ok"
    assert fact.peers[0].throughput_bytes_per_s
    assert (fact.peers[0].others[0].outcome, fact.peers[0].others[0].rate) == (outcome, 0.0)
    assert context.dials.count("10.1.0.1") == (path_quality.OTHER_DIALS if number == errno.ETIMEDOUT else 1)


def test_what_swallows_large_packets_or_breaks_is_no_way():
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


def test_real_lines_answer_at_two_addresses_and_a_dead_one_costs_no_seconds():
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
    """Nothing comes back from 127.0.0.3; ``deaf_s`` is how long a real line would have waited for it."""

    deaf_s = 0.0

    def dial(self, address: str, port: int, timeout_s: float) -> Any:
        if address == "127.0.0.3":
            self.deaf_s += timeout_s
            raise oserror(errno.ETIMEDOUT)
        return super().dial(address, port, timeout_s)


def replace_way(way: OtherWay, **changes: str) -> OtherWay:
    return way.model_copy(update=changes)


# --- the rules ------------------------------------------------------------------------------------

Change = Callable[[int, int], Mapping[str, Any] | None]


def other(target: int, **changes: Any) -> dict[str, Any]:
    well = {
        "network": "10.1.0.0/24",
        "interface": "eth1",
        "peer_interface": "eth1",
        "address": f"10.1.0.{target + 1}",
        "outcome": "ok",
        "connect_s": 0.001,
        "round_trips": 20,
        "round_trip_min_s": 0.0001,
        "retransmits": 0,
        "burst_s": 0.001,
        "throughput_bytes_per_s": 1.1e9,
    }
    return {**well, **changes}


def two_networks(nodes: int, change: Change = lambda a, b: None, **more: Any) -> Recording:
    return matrix(nodes, lambda a, b: {"others": (other(b),), **(change(a, b) or {})}, **more)


def slow(rate: float) -> dict[str, Any]:
    return {"throughput_bytes_per_s": (rate, rate * 0.9, rate * 0.95)}


def settings(finding: Finding) -> list[tuple[str, str | None, str | None]]:
    return [(one.name, one.value, one.node) for one in finding.remedies[0].settings]


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize(
    ("rate", "severity"), [(12e6, Severity.ERROR), (200e6, Severity.ERROR), (290e6, Severity.WARNING), (400e6, None)]
)
def test_a_slower_network_in_use_is_told_by_how_much_it_is_slower(nodes, rate, severity):
    told = found(two_networks(nodes, lambda a, b: slow(rate)))

    assert [(one.code, one.severity) for one in told] == ([("DD538", severity)] if severity else [])
    for one in told:
        assert settings(one) == [("GLOO_SOCKET_IFNAME", "eth1", None)]
        assert one.reproduced_by is not None
        assert (one.reproduced_by.kind, one.reproduced_by.size_bytes) == ("all_reduce", 1 << 20)


def test_of_two_nodes_the_slower_direction_counts_and_the_pair_is_named():
    finding = only(two_networks(2, lambda a, b: slow(12e6) if a else None))

    assert (finding.code, finding.severity) == ("DD538", Severity.ERROR)
    assert [(one.kind, one.node, one.peer_node, one.name) for one in finding.culprits] == [
        ("pair", "node0", "node1", "eth0")
    ]


BLOCKED = {"outcome": "timed_out", "connect_s": None, "round_trips": 0, "throughput_bytes_per_s": ()}
SWALLOWED = {"outcome": "burst_lost", "passed_bytes": 1440, "lost_bytes": 4000, "throughput_bytes_per_s": ()}
LATE = {"round_trip_min_s": 0.05, "round_trip_median_s": 0.05}
LOSSY = {"retransmits": 6}


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize(
    ("code", "fault", "kind"),
    [
        ("DD53[01]", BLOCKED, "meet"),
        ("DD532", SWALLOWED, "all_reduce"),
        ("DD534", LATE, "all_reduce"),
        ("DD536", LOSSY, "all_reduce"),
    ],
)
def test_what_is_wrong_with_the_network_in_use_is_one_finding_with_the_other_one_as_remedy(nodes, code, fault, kind):
    finding = only(two_networks(nodes, lambda a, b: fault if 1 in (a, b) else None))

    assert re.fullmatch(code, finding.code)
    assert finding.severity is not Severity.INFO
    assert settings(finding) == [("GLOO_SOCKET_IFNAME", "eth1", None)]
    assert finding.reproduced_by is not None
    assert finding.reproduced_by.kind == kind


@pytest.mark.parametrize(
    ("fault", "there"),
    [
        (BLOCKED, {"outcome": "timed_out", "throughput_bytes_per_s": None, "burst_s": None}),
        (SWALLOWED, {"outcome": "broken", "throughput_bytes_per_s": None, "burst_s": None}),
        (LATE, {"round_trip_min_s": 0.05}),
        (LOSSY, {"retransmits": 2}),
        (LOSSY, {"retransmits": None}),
    ],
)
def test_where_the_other_network_has_the_same_fault_no_setting_is_offered(fault, there):
    def change(a: int, b: int) -> dict[str, Any]:
        return {**fault, "others": (other(b, **there),)} if 1 in (a, b) else {}

    finding = only(two_networks(4, change))

    assert [one.settings for one in finding.remedies if one.settings] == []
    assert finding.reproduced_by is None


def attempts(*rates: tuple[str, float | None]) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            arm="control" if arm == "control" else "treatment",
            outcome="hung" if rate is None else "passed",
            bytes_per_s=rate,
        )
        for arm, rate in rates
    )


@pytest.mark.parametrize(
    ("tried", "is_told"),
    [
        (attempts(("control", 12e6), ("treatment", 2e8), ("control", 11e6), ("treatment", 3e8)), True),
        (attempts(("control", None), ("treatment", 2e8)), True),
        (attempts(("control", 12e6), ("treatment", 1e6), ("control", 11e6), ("treatment", 2e6)), False),
        (attempts(("control", 12e6), ("treatment", None)), False),
        ((), True),
    ],
)
def test_where_a_trial_was_no_faster_there_nothing_is_said_and_no_setting_recommended(tried, is_told):
    recording = two_networks(2, lambda a, b: slow(12e6))
    first = only(recording)
    assert first.reproduced_by is not None
    experiment = Experiment(
        code="DD538", settings=first.remedies[0].settings, reproducer=first.reproduced_by, attempts=tried
    )

    tried_out = recording.model_copy(update={"experiments": (experiment,)})

    assert [one.severity for one in found(tried_out)] == [Severity.ERROR] * is_told
