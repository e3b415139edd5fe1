import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.network.addresses import (
    is_loopback,
    is_own_bridge,
    likely_interface,
    network_of,
    packed,
    shared_interface,
)
from ddp_doctor.model.context import Interface

LO = Interface(name="lo", loopback=True, addresses=("127.0.0.1/8",))


def nic(name: str, *addresses: str, speed: int | None = None, running: bool = True) -> Interface:
    return Interface(name=name, addresses=addresses, speed_mbps=speed, running=running)


def test_loopback_addresses_sort_between_the_private_networks():
    own = packed("127.0.1.1")
    assert packed("10.255.0.1") < own < packed("172.16.0.1") < packed("192.168.0.1")
    assert packed("fe80::1%eth0") == packed("fe80::1")


@pytest.mark.parametrize("name", ["docker0", "virbr0", "virbr0-nic", "br-0123456789ab", "podman1", "lxdbr0", "vmnet8"])
def test_bridges_for_one_host_are_known_by_name(name):
    assert is_own_bridge(name)


@pytest.mark.parametrize("name", ["eth0", "br0", "bond0", "br-data", "ib0", "cni0", "flannel.1", "docker", "dockerd0"])
def test_interfaces_that_may_lead_elsewhere_are_not_local_bridges(name):
    assert not is_own_bridge(name)


def test_an_address_of_a_service_on_lo_is_not_loopback():
    assert is_loopback("127.0.1.1")
    assert is_loopback("::1")
    assert not is_loopback("10.200.0.1")


def test_network_is_taken_from_the_interface_unless_it_has_a_single_address():
    interfaces = (LO, nic("eth0", "10.0.0.1/24"), nic("ens4", "10.128.0.2/32"))
    assert str(network_of(interfaces, "10.0.0.1")) == "10.0.0.0/24"
    assert network_of(interfaces, "10.128.0.2") is None
    assert network_of(interfaces, "10.9.9.9") is None


def test_hosts_share_a_network_under_different_names():
    hosts = {0: (LO, nic("eth0", "10.0.0.1/24")), 7: (LO, nic("enp1s0", "10.0.0.2/24"))}
    assert shared_interface(hosts) == {0: "eth0", 7: "enp1s0"}


def test_link_local_single_and_loopback_addresses_are_not_networks():
    interfaces = (LO, nic("eth0", "169.254.1.1/16", "fe80::1%eth0/64", "10.0.0.1/32"))
    assert shared_interface({0: interfaces, 1: interfaces}) == {}
    assert shared_interface({}) == {}


def test_shared_network_in_use_precedes_the_faster_one_and_the_first():
    hosts = {
        node: (
            nic("eth0", f"10.0.0.{node}/24", speed=1000),
            nic("eth1", f"10.1.0.{node}/24", speed=25000),
            nic("eth2", f"10.2.0.{node}/24", speed=25000),
        )
        for node in (1, 2)
    }
    assert shared_interface(hosts) == {1: "eth1", 2: "eth1"}
    assert shared_interface(hosts, in_use=frozenset({"10.0.0.2"})) == {1: "eth0", 2: "eth0"}


def test_cloud_machine_with_a_single_address_may_reach_others():
    assert likely_interface((LO, nic("ens4", "10.128.0.2/32"))) == "ens4"


@given(st.lists(st.ip_addresses(v=4), min_size=2, max_size=5, unique=True), st.integers(8, 30))
def test_shared_network_has_an_address_of_each_host(own, prefix):
    hosts = {node: (LO, nic("eth0", f"{one}/{prefix}")) for node, one in enumerate(own)}
    shared = shared_interface(hosts)
    networks = {network_of(hosts[node], str(one)) for node, one in enumerate(own)}
    assert shared in ({}, dict.fromkeys(hosts, "eth0"))
    assert not shared or len(networks) == 1
