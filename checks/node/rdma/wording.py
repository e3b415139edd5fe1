"""The texts of findings about RDMA ports, and their fixes.

Sources: NCCL user guide (environment variables NCCL_IB_HCA, NCCL_IB_GID_INDEX; troubleshooting: networking issues,
RDMA over Converged Ethernet, Docker) and the manual pages of ibstat, ibdiagnet and ip-link.

Before it fails with status 12, NCCL's RDMA waits for an acknowledgment for 4.096 µs x 2^NCCL_IB_TIMEOUT per try, with
NCCL_IB_RETRY_CNT tries (libibverbs, ibv_modify_qp(3): timeout and retry_cnt, of 5 and 3 bits; NCCL
src/transport/net_ib: 18 and 7, since 2.23 20 and 7).
"""

from collections.abc import Mapping, Sequence

from ddp_doctor.facts.node.rdma import Hca, Port
from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.roce_gids import FAMILY
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy, Reproducer, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies import nccl
from ddp_doctor.remedies.kinds import by_administrator, remedy
from ddp_doctor.settings.wording import printable, shown
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, finding
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE, host, name_list, node_culprit, on_hosts

TIMEOUT, RETRIES = "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"
DEFAULT_TIMEOUT, DEFAULT_RETRIES = 20, 7
#: Four times the default, two minutes in total: enough for a fabric that learns new routes.
LONGER_TIMEOUT = 22
_TICK_S = 4.096e-6


def wait_s(timeout: int) -> float:
    """Return the seconds until an unacknowledged send fails."""
    return _TICK_S * float(2**timeout) * DEFAULT_RETRIES


def lowered(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that fail sooner than NCCL's defaults."""
    limits = {TIMEOUT: DEFAULT_TIMEOUT, RETRIES: DEFAULT_RETRIES}
    found = {}
    for name, default in limits.items():
        value = settings.get(name, "")
        if value.isdecimal() and len(value) < 4 and int(value) < default:
            found[name] = value
    return found


#: One port of one node.
Hit = tuple[int, Hca, Port]


def port_draft(
    recording: Recording,
    described: Sequence[tuple[Hit, str]],
    what: str,
    *remedies: Remedy,
    detail: str,
    severity: Severity | None = None,
    confidence: Confidence = Confidence.LIKELY,
    expected: str | None = None,
    reproduced_by: Reproducer | None = None,
) -> Draft:
    """Return a finding "mlx5_3 on node0: ``what``", with a line of evidence per node and state."""
    hits = [port_at for port_at, _ in described]
    alike = grouped(((node, words), port_name(hca, port)) for (node, hca, port), words in described)
    lines = [
        Evidence(
            text=f"{', '.join(names)}{f' on {host(recording, node)}' if recording.several_nodes else ''}: {words}",
            expected_from=expected,
        )
        for (node, words), names in list(alike.items())[:LINES_OF_EVIDENCE]
    ]
    left = sum(len(names) for names in list(alike.values())[LINES_OF_EVIDENCE:])
    return finding(
        (node_culprit(recording, node, kind="nic", name=port_name(hca, port)) for node, hca, port in hits),
        f"{port_names(recording, hits)}: {what}",
        [*lines, *([Evidence(text=f"and {left} more ports, listed in the JSON report")] if left else [])],
        *remedies,
        confidence=confidence,
        detail=detail,
        severity=severity,
        reproduced_by=reproduced_by,
    )


def port_name(hca: Hca, port: Port) -> str:
    """Name the device, and its port if it has several."""
    return hca.name if len(hca.ports) == 1 else f"{hca.name} port {port.number}"


def port_names(recording: Recording, hits: Sequence[Hit]) -> str:
    """Name ports for a sentence: "mlx5_3 on node0", "mlx5_0 on node0 and node1", "12 RDMA ports on 6 nodes"."""
    nodes = grouped((port_name(hca, port), node) for node, hca, port in hits)
    of_nodes = grouped((tuple(some), name) for name, some in nodes.items())
    if len(of_nodes) == 1 and len(nodes) <= NAMES_IN_A_SENTENCE:
        hosts = [host(recording, node) for node in next(iter(of_nodes))]
        return f"{name_list(list(nodes))} on {name_list(hosts)}"
    if len(hits) > NAMES_IN_A_SENTENCE:
        return on_hosts(recording, [(node, hca.name) for node, hca, _ in hits], "RDMA ports")
    return name_list([f"{port_name(hca, port)} on {host(recording, node)}" for node, hca, port in hits])


def look_at_link(described: Sequence[tuple[Hit, str]], why: str) -> Remedy:
    """Return the next step to find out why a link, the first of these, is down, slow or unsteady."""
    (_, hca, port), _ = described[0]
    name = hca.name if nccl_hca.is_name(hca.name) else "DEVICE"
    ethernet = [f"ethtool {netdev}" for netdev in port.netdevs[:1] if nccl_hca.is_name(netdev)]
    infiniband = [f"ibstat {name}", f"sudo mlxlink -d {name} -m -c -e   # from mft; the cable's own readings"]
    return by_administrator(
        f"Check cable, transceiver and switch port at the other end ({why})",
        *ethernet if port.is_roce and ethernet else infiniband,
        cost="physical access to the cable; a drained node",
    )


def use_ports(
    recording: Recording, ports: Mapping[int, Sequence[tuple[Hca, Port]]], why: str, former: str = ""
) -> tuple[Remedy, ...]:
    """Return the fix that sets NCCL_IB_HCA to these ports of each node; empty if a name cannot be written in it."""
    values = {node: nccl_hca.exactly((hca.name, port.number) for hca, port in some) for node, some in ports.items()}
    undo = f"export {shown(nccl_hca.HCA, former)}" if former else ""
    return per_node(recording, nccl_hca.HCA, values, why, "idle RDMA ports", undo)


def per_node(
    recording: Recording, name: str, values: Mapping[int, str | None], why: str, cost: str, undo: str = ""
) -> tuple[Remedy, ...]:
    """Return one setting for all nodes if possible, otherwise one per node; empty if a node has none."""
    known = [value for value in values.values() if value is not None]
    if not known or len(known) < len(values):
        return ()
    alike = len(set(known)) == 1
    each = tuple(
        Setting(name=name, value=value, why=why, node=host(recording, node), node_rank=node)
        for node, value in values.items()
    )
    same = f"Set {shown(name, known[0])}"
    if known[0].startswith("="):
        same = f'Set {name} to "{printable(known[0])}" (the leading = selects exact names)'
    settings = (Setting(name=name, value=known[0], why=why),) if alike else each
    summary = same if alike else f"Set {name} on each node to its own value"
    return (nccl.by_setting(summary, *settings, cost=cost, undo=undo),)


USE_IPV6 = nccl.by_setting(
    "Let NCCL use IPv6 entries, which every port has",
    Setting(name=FAMILY, value="AF_INET6", why="every port has a routable IPv6 entry of RoCE v2"),
    cost="requires a fabric that routes IPv6",
)

SOCKETS_ON_ALL = nccl.by_setting(
    "Use TCP on all nodes until then, so that they can connect (workaround)",
    Setting(name="NCCL_IB_DISABLE", value="1", why="ranks on TCP and ranks on RDMA cannot connect"),
    cost="a fraction of the RDMA rate between nodes, and CPU time",
    conflicts=("NCCL_IB_HCA",),
)

UPGRADE_NCCL = remedy(
    "Install a torch with NCCL 2.26 or newer, which finds the entry itself, even in containers",
    scope="job",
    cost="a different release of torch",
    undo="reinstall the previous release",
    untried="ddp-doctor does not install software",
)

#: The RDMA devices of a host for a container.
GIVE_DEVICES = remedy(
    "Start the container with the host's RDMA devices: --device /dev/infiniband, or the Kubernetes device plug-in",
    "docker run --device /dev/infiniband --ulimit memlock=-1 --cap-add IPC_LOCK IMAGE",
    cost="the container can access the fabric; its processes may pin memory",
    undo="start without the option",
    untried="ddp-doctor does not start containers",
    references=(nccl.TROUBLE,),
    container=("--device=/dev/infiniband", "--ulimit=memlock=-1", "--cap-add=IPC_LOCK"),
)


LOSSLESS = by_administrator(
    "Compare flow control (PFC), ECN and traffic class on hosts and switches with the fabric's design",
    "mlnx_qos -i INTERFACE",
    "ethtool -S INTERFACE | grep -e pause -e discard",
    scope="cluster",
    cost="administrator access to hosts and switches; NCCL_IB_TC must be the intended class",
    references=(nccl.entry("NCCL_IB_TC"), f"{nccl.TROUBLE}#rdma-over-converged-ethernet-roce"),
)
