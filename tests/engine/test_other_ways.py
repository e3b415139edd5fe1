"""The other networks that the head names: shared by all nodes, not taken on all of them, and few."""

from ddp_doctor.agents.messages import Contact, NodeReport
from ddp_doctor.engine.node_run import other_networks
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.interface_choice import Choice
from ddp_doctor.knowledge.network.path_quality import OTHER_NETWORKS
from ddp_doctor.model.choices import Status
from ddp_doctor.model.context import Interface
from ddp_doctor.model.fact import Reading
from tests.readings import collected


def node_report(node: int, *nics: Interface, takes: str = "") -> NodeReport:
    fact = InterfacesFact(interfaces=nics, gloo=Choice(), nccl=Choice())
    reading = collected("interfaces", fact)
    return NodeReport(hostname=f"node{node}", nnodes=2, readings=(reading,), advertised=takes, port=4000 + node)


def nic(name: str, *addresses: str, speed: int | None = None, running: bool = True) -> Interface:
    return Interface(name=name, addresses=addresses, speed_mbps=speed, running=running)


def networks(*node_reports: NodeReport) -> list[list[tuple[str, str, str]]]:
    found = other_networks.contacts(dict(enumerate(node_reports)))
    return [[(one.network, one.interface, one.address) for one in contact.other_addresses] for contact in found]


def test_a_second_network_is_named_by_each_nodes_own_interface():
    told = networks(
        node_report(0, nic("eth0", "10.0.0.1/24"), nic("ens5", "10.1.0.1/24"), takes="10.0.0.1"),
        node_report(1, nic("eth0", "10.0.0.2/24"), nic("eth1", "10.1.0.2/24"), takes="10.0.0.2"),
    )
    assert told == [[("10.1.0.0/24", "ens5", "10.1.0.1")], [("10.1.0.0/24", "eth1", "10.1.0.2")]]


def test_network_used_by_all_nodes_is_not_another_network():
    both = (nic("eth0", "10.0.0.1/24"), nic("eth1", "10.1.0.1/24"))
    more = (nic("eth0", "10.0.0.2/24"), nic("eth1", "10.1.0.2/24"))
    mixed = networks(node_report(0, *both, takes="10.0.0.1"), node_report(1, *more, takes="10.1.0.2"))
    assert [network for network, _, _ in mixed[0]] == ["10.0.0.0/24", "10.1.0.0/24"]
    lost = networks(node_report(0, *both, takes="127.0.1.1"), node_report(1, *more))
    assert [network for network, _, _ in lost[0]] == ["10.0.0.0/24", "10.1.0.0/24"]


def test_interface_counts_once_by_the_address_that_a_backend_uses():
    """The IPv6 network of eth0 and the second addresses of eth1 are no further ways."""

    def node(number: int) -> NodeReport:
        here = f"10.0.0.{number}"
        nics = (
            nic("eth0", f"{here}/24", f"fd00:7::{number}/64"),
            nic("eth1", f"10.1.0.{number}/24", f"10.2.0.{number}/24", f"fd00:8::{number}/64"),
        )
        return node_report(number, *nics, takes=here)

    assert [network for network, _, _ in networks(node(1), node(2))[0]] == ["10.1.0.0/24"]


def test_bridges_inactive_links_and_networks_of_some_nodes_are_skipped():
    def node(number: int, *more: Interface) -> NodeReport:
        docker = nic("docker0", "172.17.0.1/16")
        dead = nic("eth1", f"10.1.0.{number}/24", running=number == 1)
        return node_report(number, nic("eth0", f"10.0.0.{number}/24"), docker, dead, *more, takes=f"10.0.0.{number}")

    assert networks(node(1), node(2, nic("eth2", "10.2.0.2/24"))) == [[], []]


def test_fastest_of_many_networks_are_tested():
    def node(number: int) -> NodeReport:
        rails = [nic(f"rail{i}", f"10.{i}.0.{number}/24", speed=i * 1000) for i in range(1, 9)]
        return node_report(number, nic("eth0", f"10.0.0.{number}/24"), *rails, takes=f"10.0.0.{number}")

    fastest = [f"rail{i}" for i in range(8, 8 - OTHER_NETWORKS, -1)]
    assert [interface for _, interface, _ in networks(node(1), node(2))[0]] == fastest


def test_no_other_network_exists_if_a_node_has_no_valid_interfaces():
    whole = node_report(0, nic("eth0", "10.0.0.1/24"), nic("eth1", "10.1.0.1/24"), takes="10.0.0.1")
    silent = NodeReport(hostname="node1", nnodes=2)
    junk = Reading(check="interfaces", status=Status.COLLECTED, fact={"kind": "interfaces/1", "interfaces": 7})
    broken = NodeReport(hostname="node1", nnodes=2, readings=(junk,))
    odd = node_report(1, nic("eth0", "10.0.0.x/24"), nic("eth1", "10.1.0.2/24"))
    for other in (silent, broken, odd):
        assert networks(whole, other) == [[], []]


def test_ways_between_two_nodes_are_networks_of_both():
    mine, peer = other_networks.contacts(
        {
            0: node_report(0, nic("eth0", "10.0.0.1/24"), nic("ens5", "10.1.0.1/24"), takes="10.0.0.1"),
            1: node_report(1, nic("eth0", "10.0.0.2/24"), nic("eth1", "10.1.0.2/24"), takes="10.0.0.2"),
        }
    )
    (way,) = other_networks.between(mine, peer)
    assert (way.network, way.interface, way.peer_interface, way.address) == ("10.1.0.0/24", "ens5", "eth1", "10.1.0.2")
    alone = Contact(node=2, hostname="", port=1, advertised="", met_at="")
    assert other_networks.between(alone, peer) == ()
