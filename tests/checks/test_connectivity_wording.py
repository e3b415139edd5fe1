from ddp_doctor.checks.cluster.connectivity import wording
from ddp_doctor.model.recording import Node, Recording, World


def nodes(**interfaces: str) -> Recording:
    hosts = tuple(
        Node(node_rank=rank, hostname=name, addresses={interface: (f"10.0.0.{rank + 1}",)})
        for rank, (name, interface) in enumerate(interfaces.items())
    )
    return Recording(world=World(nnodes=len(hosts), nodes=hosts))


THREE = nodes(a="eth0", b="eth0", c="ens3")


def test_interface_names_come_from_the_world_if_not_recorded():
    assert wording.interface_name(THREE, 2, "10.0.0.3") == "ens3"
    assert wording.interface_name(THREE, 2, "10.0.0.9") is None
    assert wording.interface_name(Recording(), 2, "10.0.0.3") is None
    assert wording.interface_with(THREE, 2, "10.0.0.3") is None


def test_only_nodes_with_other_interface_names_get_a_setting():
    remedy = wording.use_met_interface(THREE, {2: "10.0.0.3"}, {0: "10.0.0.1"})
    assert [(one.value, one.node) for one in remedy.settings] == [("ens3", "c")]
