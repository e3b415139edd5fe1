"""Each network fault has the effect of its name on the named hosts, and is gone when undone."""

import pytest

from tests.lab import faults
from tests.lab.conftest import answers
from tests.lab.hosts import Lab, why_no_lab
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.lab

MIB = 1 << 20

#: fault, node1 dials node0, node0 dials node1
CONNECTING = (
    ("drop-port:node0", "timeout", None),
    ("reject-port:node0", "ECONNREFUSED", None),
    ("prohibit-port:node0", "EHOSTUNREACH", None),
    ("drop-port:node0:4000", None, None),
    ("drop-all-but:node0", None, None),
    ("drop-all-but:node0:4000", "timeout", None),
    ("reject-all-but:node0:4000", "ECONNREFUSED", None),
    ("block-inbound:node0", "timeout", None),
    ("silence:node0", "timeout", "timeout"),
    ("cut-path:node0:node1", "timeout", "timeout"),
    ("no-route:node1:node0", "EHOSTUNREACH", "timeout"),
    ("link-down:node1", "ENETUNREACH", "timeout"),
    ("cable-out:node1", "timeout", "timeout"),
    ("dead-port:node1", "timeout", "timeout"),
)


@pytest.fixture(autouse=True)
def _nothing_else_is_broken(lab, dial):
    yield
    wait_until(lambda: "error" not in dial(lab["node1"], "10.77.0.1"), "the fault is undone")
    wait_until(lambda: "error" not in dial(lab["node0"], "10.77.0.2"), "the fault is undone")


@pytest.mark.parametrize(("fault", "to_node0", "to_node1"), CONNECTING, ids=[row[0] for row in CONNECTING])
def test_fault_blocks_the_expected_connections(lab, dial, fault, to_node0, to_node1):
    with faults.plant(lab, fault):
        for host, address, error in (("node1", "10.77.0.1", to_node0), ("node0", "10.77.0.2", to_node1)):
            limit_s = 0.3 if error == "timeout" else LIMIT_S
            assert dial(lab[host], address, timeout_s=limit_s).get("error") == error
        assert "error" not in dial(lab["node3"], "10.77.0.3")


def test_a_host_behind_its_firewall_still_reaches_itself(lab, dial):
    with faults.plant(lab, "block-inbound:node0"):
        assert "error" not in dial(lab["node0"], "10.77.0.1")


def test_a_link_that_is_down_has_no_carrier_and_a_dead_port_has(lab: Lab):
    def flags() -> str:
        return lab["node1"].run(("ip", "-brief", "link", "show", "eth0")).stdout

    with faults.plant(lab, "cable-out:node1"):
        wait_until(lambda: "NO-CARRIER" in flags())
    with faults.plant(lab, "link-down:node1"):
        assert "DOWN" in flags()
    with faults.plant(lab, "dead-port:node1"):
        wait_until(lambda: "LOWER_UP" in flags())


def test_only_the_second_interface_breaks(lab, dial):
    with faults.plant(lab, "dead-port:node1:eth1"):
        assert dial(lab["node1"], "10.78.0.1", timeout_s=0.3)["error"] == "timeout"
        assert "error" not in dial(lab["node1"], "10.77.0.1")


def test_addresses_of_both_families_survive_a_link_that_was_down(lab, dial):
    with faults.plant(lab, "link-down:node1"):
        pass
    assert "error" not in dial(lab["node0"], "fd77::2")


@pytest.mark.serial  # measures round trips
def test_delay_affects_every_round_trip_of_its_host_only(lab, dial):
    with faults.plant(lab, "delay:node1:25"):
        assert dial(lab["node1"], "10.77.0.1")["round_trip_s"] >= 0.050
        assert dial(lab["node2"], "10.77.0.1")["round_trip_s"] < 0.020


@pytest.mark.serial  # measures round trips and rates
def test_delay_of_zero_costs_very_little(lab, dial):
    with faults.plant(lab, "delay:node1:0"):
        said = dial(lab["node1"], "10.77.0.1", size=8 * MIB)
    assert said["round_trip_s"] < 0.010
    assert said["bytes_per_s"] > 50e6


@pytest.mark.serial  # measures rates
def test_a_slow_link_is_slow_in_both_directions_for_its_host_only(lab, dial):
    with faults.plant(lab, "rate:node1:100"):
        rates = [
            dial(lab[a], b, size=2 * MIB)["bytes_per_s"]
            for a, b in (("node1", "10.77.0.1"), ("node0", "10.77.0.2"), ("node3", "10.77.0.1"))
        ]
    assert 5e6 < rates[0] < 20e6
    assert 5e6 < rates[1] < 20e6
    assert rates[2] > 50e6


def test_lost_packets_are_lost_on_the_way_to_one_host_only(lab):
    if reason := why_no_lab("ping"):
        pytest.skip(reason)
    ping = ("ping", "-A", "-q", "-c", "100", "-w", "10")
    with faults.plant(lab, "loss:node1:30"):
        lossy, clean = (
            float(lab["node0"].run((*ping, to), check=False).stdout.split("% packet loss")[0].split()[-1])
            for to in ("10.77.0.2", "10.77.0.3")
        )
    assert 25 < lossy < 80  # 51 expected: there and back
    assert clean == 0


def test_black_hole_passes_small_packets_and_drops_large_ones(lab, dial):
    with faults.plant(lab, "mtu-black-hole:node1"):
        for a, b in (("node1", "10.77.0.1"), ("node0", "10.77.0.2")):
            assert "error" not in dial(lab[a], b)
            assert dial(lab[a], b, size=MIB, timeout_s=0.5)["error"] == "timeout"
        assert "error" not in dial(lab["node0"], "10.77.0.3", size=MIB)
    assert "error" not in dial(lab["node0"], "10.77.0.2", size=MIB)


def test_one_host_with_a_larger_mtu_is_harmless(lab, dial):
    with faults.plant(lab, "mtu:node1:9000"):
        assert "mtu 9000" in lab["node1"].run(("ip", "link", "show", "eth0")).stdout
        assert "error" not in dial(lab["node1"], "10.77.0.1", size=MIB)


def test_filter_of_one_port_affects_ports_opened_later(lab, dial):
    with faults.plant(lab, "drop-all-but:node2"):
        answers(lab["node2"], 4001)
        assert dial(lab["node1"], "node2", port=4001, timeout_s=0.3)["error"] == "timeout"
        assert "error" not in dial(lab["node2"], "node2", port=4001)
    assert "error" not in dial(lab["node1"], "node2", port=4001)
