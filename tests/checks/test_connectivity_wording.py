from ddp_doctor.checks.cluster.connectivity import wording
from ddp_doctor.model.context import Interface
from ddp_doctor.model.recording import Node, Recording, World


def nodes(**interfaces: str) -> Recording:
    """Nodes by name, each with the interface that holds its address."""
    hosts = tuple(
        Node(node_rank=rank, hostname=name, addresses={interface: (f"10.0.0.{rank + 1}",)})
        for rank, (name, interface) in enumerate(interfaces.items())
    )
    return Recording(world=World(nnodes=len(hosts), nodes=hosts))


THREE = nodes(a="eth0", b="eth0", c="ens3")


def test_the_number_of_an_error_is_left_to_the_recording():
    assert wording.system_words("[Errno 110] Connection timed out") == "Connection timed out"
    assert wording.system_words("it timed_out") == "it timed_out"
    assert wording.system_words(None) == "no reason is known"


def test_paths_are_told_with_their_direction_or_as_pairs():
    assert wording.path_words(THREE, [(1, 2)]) == "from b to c"
    assert wording.path_words(THREE, [(2, 1), (1, 2)]) == "between b and c"
    assert wording.path_words(THREE, [(0, 1), (1, 0), (2, 0)]) == "between a and b and from c to a"


def test_a_pair_is_one_culprit_whatever_the_direction():
    (culprit,) = wording.path_culprits(THREE, [(2, 1), (1, 2)])
    assert (culprit.kind, culprit.node, culprit.peer_node) == ("pair", "b", "c")


def test_an_unknown_port_range_is_left_to_the_reader():
    remedy = wording.let_in("a", None, ["10.0.0.2"])
    assert "dport FIRST-LAST" in remedy.commands[1]
    assert wording.narrow_ports(None).undo == ""
    assert wording.port_words(None) == "ephemeral ports"


def test_many_addresses_make_a_network_of_the_readers():
    remedy = wording.let_in("a", (1, 2), [f"10.0.0.{i}" for i in range(40)])
    assert "ip saddr NETWORK/PREFIX tcp" in remedy.commands[1]
    assert "-s NETWORK/PREFIX " in remedy.commands[2]


def test_both_families_get_a_rule_each_and_scopes_are_left_out():
    commands = "\n".join(wording.let_in("a", (1, 2), ["10.0.0.2", "fe80::1%eth0"]).commands)
    assert "ip saddr { 10.0.0.2 }" in commands
    assert "ip6 saddr { fe80::1 }" in commands


def test_the_world_knows_interfaces_that_were_not_recorded():
    assert wording.interface_name(THREE, 2, "10.0.0.3") == "ens3"
    assert wording.interface_name(THREE, 2, "10.0.0.9") is None
    assert wording.interface_name(Recording(), 2, "10.0.0.3") is None
    assert wording.interface_with(THREE, 2, "10.0.0.3") is None


def test_interfaces_of_different_names_are_a_setting_for_each_node():
    remedy = wording.use_met_interface(THREE, {0: "10.0.0.1", 2: "10.0.0.3"}, {})
    assert [(one.name, one.value, one.node, one.node_rank) for one in remedy.settings] == [
        ("GLOO_SOCKET_IFNAME", "eth0", "a", 0),
        ("GLOO_SOCKET_IFNAME", "ens3", "c", 2),
    ]


def test_only_the_nodes_that_need_it_get_a_setting_where_the_others_have_other_names():
    remedy = wording.use_met_interface(THREE, {2: "10.0.0.3"}, {0: "10.0.0.1"})
    assert [(one.value, one.node) for one in remedy.settings] == [("ens3", "c")]


def test_a_path_of_ipv6_has_larger_headers():
    places = [("a", Interface(name="eth0", mtu=9000))]
    assert "mtu 1512 " in wording.smaller_mtu(places, 1440, ipv6=True).commands[0]
    assert "mtu 1492 " in wording.smaller_mtu(places, 1440, ipv6=False).commands[0]
    assert "-s 8972 " in wording.one_mtu(THREE, 0, "fd00::1", 1440, 8948).commands[0]
