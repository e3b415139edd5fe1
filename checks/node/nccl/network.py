"""DD234, DD235: EFA devices without a plug-in that drives them, and a network plug-in on some nodes only."""

from collections.abc import Iterator

from ddp_doctor.checks.node.nccl.plugins import in_folder
from ddp_doctor.facts.node.nccl import NcclFact
from ddp_doctor.knowledge.network.nccl_plugins import OWN_NETWORKS
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.views.software import nccl_of_gpu_nodes
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.nodes import by_cause, node_names, of_nodes


@rule("DD234", "efa-without-plugin", Severity.WARNING, NcclFact)
def efa_without_plugin(recording: Recording) -> Iterator[Draft]:
    """Elastic Fabric Adapters, and no plug-in through which NCCL could use them.

    What it finds
        RDMA devices of the kernel's driver efa, and no network plug-in that loads; NCCL_NET does not ask for sockets.
        Information only for a job of one node, which needs no network.

    Why it matters
        NCCL's own InfiniBand transport does not drive EFA. The nodes talk over plain sockets on the first
        Ethernet interface, with a fraction of the rate.

    Remedy
        Let the linker find aws-ofi-nccl, or install it.

    References
        https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html
    """
    alone = recording.world is None or recording.world.nnodes < 2
    for (devices, folder), group in by_cause(nccl_of_gpu_nodes(recording), _idle_efa).items():
        title = f"{{who}} {'has' if len(group) == 1 else 'have'} {devices} EFA devices that NCCL cannot use"
        saw = Evidence(text="no network plug-in that loads is found", expected_from="aws/aws-ofi-nccl README")
        yield likely(
            of_nodes(recording, group),
            title,
            saw,
            in_folder(folder) if folder else _INSTALL,
            detail="Without the plug-in the nodes talk over plain sockets.",
            severity=Severity.INFO if alone else None,
        )


def _idle_efa(fact: NcclFact) -> tuple[int, str | None] | None:
    if not fact.efa_devices or (fact.network or "").lower() == "socket":
        return None
    if any(one.works for one in fact.networks()):
        return None
    return len(fact.efa_devices), next((folder for one in fact.networks() for folder in one.elsewhere), None)


_INSTALL = remedy(
    "Install aws-ofi-nccl (it comes with the EFA installer), on the node or in the image",
    cost="a new image, or some minutes for each node",
    undo="remove the package again",
    untried="the doctor changes no installation",
)


@rule("DD235", "network-plugin-on-some-nodes", Severity.ERROR, NcclFact)
def network_plugin_on_some_nodes(recording: Recording) -> Iterator[Draft]:
    """A network plug-in that some nodes of the job can load and others cannot.

    What it finds
        Among the nodes with GPUs some have a network plug-in that loads, and some have none. Silent where NCCL_NET
        asks for one of NCCL's own networks.

    Why it matters
        Each node chooses its network for itself, and the handles of two networks do not fit together: the
        ranks fail or hang where they connect.

    Remedy
        Start the job in the same image, with the same LD_LIBRARY_PATH, on all nodes; or, with NCCL_NET_PLUGIN=none,
        without a plug-in on all.

    References
        NCCL src/plugin/net.cc, ncclNetInit
    """
    asked = [
        seen for seen in nccl_of_gpu_nodes(recording) if (seen.fact.network or "").lower() not in OWN_NETWORKS
    ]
    having = [seen for seen in asked if any(one.works for one in seen.fact.networks())]
    without = [seen for seen in asked if seen not in having]
    if not having or not without:
        return
    path = next(one.path for seen in having for one in seen.fact.networks() if one.works) or "it"
    fewer = min(having, without, key=len)
    yield likely(
        of_nodes(recording, fewer),
        f"NCCL finds a network plug-in on {node_names(recording, having)}, and none that loads on"
        f" {node_names(recording, without)}",
        Evidence(
            text=f"{path} on {node_names(recording, having)} only",
            expected_from="NCCL src/plugin/net.cc, ncclNetInit",
        ),
        _SAME_IMAGE,
        detail="Nodes that choose different networks fail or hang where they connect.",
    )


_SAME_IMAGE = remedy(
    "Use the same image and LD_LIBRARY_PATH on all nodes, or NCCL_NET_PLUGIN=none on all",
    scope="job",
    cost="with none, NCCL's own InfiniBand or sockets take its place: no EFA, no SHARP",
    undo="put the former lines back",
    untried="the doctor changes no installation",
)
