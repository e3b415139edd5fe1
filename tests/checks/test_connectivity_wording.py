from ddp_doctor.checks.cluster.connectivity import wording
from ddp_doctor.model.recording import Node, Recording, World


def nodes(**interfaces: str) -> Recording:
    hosts = tuple(
        Node(node_rank=rank, hostname=name, addresses={interface: (f"10.0.0.{rank + 1}",)})
        for rank, (name, interface) in enumerate(interfaces.items())
    )
    return Recording(world=World(nnodes=len(hosts), nodes=hosts))


THREE = nodes(a="eth0", b="eth0", c="ens3")


def test_the_world_knows_interfaces_that_were_not_recorded():
    assert wording.interface_name(THREE, 2, "10.0.0.3") == "ens3"
    assert wording.interface_name(THREE, 2, "10.0.0.9") is None
    assert wording.interface_name(Recording(), 2, "10.0.0.3") is None
    assert wording.interface_with(THREE, 2, "10.0.0.3") is None


def test_only_the_nodes_that_need_it_get_a_setting_where_the_others_have_other_names():
    remedy = wording.use_met_interface(THREE, {2: "10.0.0.3"}, {0: "10.0.0.1"})
    assert [(one.value, one.node) for one in remedy.settings] == [("ens3", "c")]
