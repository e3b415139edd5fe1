"""DD401, DD402, DD412, DD413: direct copies between GPUs that stall or may stall, and first steps if jobs hang."""

from collections.abc import Collection, Iterator, Sequence

from ddp_doctor.checks.node.topology import p2p_status
from ddp_doctor.checks.node.topology.nvlinks import without_nvlinks
from ddp_doctor.checks.node.topology.wording import UNSET_LEVEL, culprit, hosts_of, name_hca, use_hca
from ddp_doctor.facts.node.host import Host
from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.network import roce_gids
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.knowledge.topology.cluster_kinds import Cluster, Kind, Maker, cluster_of
from ddp_doctor.knowledge.topology.link_codes import connected
from ddp_doctor.knowledge.versions import dotted
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Command, Confidence, Consequence
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.hardware import exact_repairs
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.remedies.nccl import DISABLE_P2P, NVLINK_ONLY, REPAIR_PATH, keep_near_p2p
from ddp_doctor.views.failed_trials import Stall, logs_by_node, nodes_nccl_ran_on, stalls
from ddp_doctor.views.network import rdma_of
from ddp_doctor.views.reproducers import between
from ddp_doctor.views.transports import places
from ddp_doctor.wording.findings import NOBODY, finding, possible
from ddp_doctor.wording.nodes import by_cause
from ddp_doctor.wording.pcie import what_bends_the_path
from ddp_doctor.wording.ranks import rank_list


@rule("DD401", "p2p-stalls-between-gpus", Consequence.HANGS, TopologyFact)
def p2p_stalls_between_gpus(recording: Recording) -> Iterator[Draft]:
    """Direct copies between two GPUs never end.

    Finds: Reports if all ranks of a node entered an all-reduce or a send and none left it, and NCCL's log shows that
        the GPUs of two of them communicate directly (``via P2P/…``) over PCIe or the link between the sockets.
    Why: The job hangs in its first all-reduce, at 100% GPU utilization and without a message. The machine announces
        peer access that does not work: usually, PCIe access control (ACS) or an IOMMU redirects the traffic.
    Remedy: If NCCL_P2P_LEVEL raised NCCL's own limit, unset it. If NCCL before 2.23 uses P2P that far on an AMD CPU,
        NCCL_P2P_LEVEL=PXB limits P2P to near GPUs. Otherwise, disable ACS on the PCIe bridges, or the IOMMU, in the
        BIOS or on the kernel's command line. Until then, NCCL_P2P_DISABLE=1 sends the traffic through host memory:
        slower, but it completes, which proves that P2P is the cause.
    See: NCCL user guide, Troubleshooting, PCI Access Control Services (ACS)
        NCCL src/graph/paths.cc, ncclTopoCheckP2p: how far P2P goes
    """
    found = stalls(recording)
    if not found:
        return
    hosts = [node for node in recording.facts(TopologyFact) if node.node in {stall.node for stall in found}]
    fact = hosts[0].fact
    pairs = ", ".join(dict.fromkeys(f"{'-'.join(stall.gpus)} ({stall.via} over {stall.code})" for stall in found))
    roce = any(hca.link_layer == "RoCE" for hca in found[0].log.hcas)
    another_hca = recording.several_nodes and roce and not set(found[0].log.used_hcas()) <= set(fact.candidate_hcas())
    # The ranks also stalled without P2P.
    disproved = any(
        attempt.arm == "treatment" and attempt.outcome != "passed"
        for experiment in recording.experiments
        if experiment.code == "DD401" and [one.name for one in experiment.settings] == ["NCCL_P2P_DISABLE"]
        for attempt in experiment.attempts
    )
    yield finding(
        (culprit(recording, stall.node, stall.gpus, stall.ranks) for stall in found),
        f"GPUs on {hosts_of(recording, hosts)} stall"
        f" {'with and without' if disproved else 'in'} direct copies (P2P): {pairs}",
        (*_stall_evidence(found, fact), *what_bends_the_path(recording, found[0].node)),
        *_nearer_level(fact, found),
        *(() if disproved else exact_repairs(recording, found[0].node) or (REPAIR_PATH,)),
        DISABLE_P2P,
        *(map(name_hca, _candidate_hca(recording, hosts[0])) if another_hca else []),
        confidence=Confidence.LIKELY,
        detail="The ranks stall even with NCCL_P2P_DISABLE=1, so the path between the GPUs is probably not the cause."
        if disproved
        else (
            "Every rank entered the step and none left it, and NCCL's log shows P2P between"
            " these GPUs. The machine offers that path, but data sent over it does not"
            " arrive."
        ),
        reproduced_by=between(recording, found[0].ranks, [stall.ranks for stall in found]),
    )


def _nearer_level(fact: TopologyFact, stalls: Sequence[Stall]) -> list[Remedy]:
    """Return NCCL's current default limit, if P2P exceeds it: by a setting, or on AMD CPUs before NCCL 2.23."""
    limit = _default_p2p_limit(fact)
    if all(link_codes.allowed(stall.code, limit) for stall in stalls):
        return []
    if stalls[0].log.p2p_level or "NCCL_P2P_LEVEL" in fact.nccl_settings:
        return [UNSET_LEVEL]
    near = any(link_codes.allowed(code, limit) for _, _, code in fact.gpu_pairs())
    far = not any(link_codes.allowed(stall.code, limit) for stall in stalls)
    return [keep_near_p2p(limit)] if near and far else []


def _default_p2p_limit(fact: TopologyFact) -> str:
    return link_codes.p2p_limit(len(fact.gpus), fact.cpu_vendor, None)[0]


def _stall_evidence(stalls: Sequence[Stall], fact: TopologyFact) -> Iterator[Evidence]:
    trial = stalls[0].trial
    check = trial.judged_check or ""
    text = f"time in the step without leaving it, {rank_list([rank for stall in stalls for rank in stall.ranks])}"
    yield Evidence(check=check, text=text, value=trial.waited_s, unit="s")
    for stall in stalls:
        yield Evidence(check=check, text=f"NCCL's log: ranks {stall.ranks[0]} and {stall.ranks[1]} via {stall.via}")
        yield _path_evidence(stall.gpus, stall.code)
    limit, why = fact.p2p_limit(stalls[0].log)
    if all(link_codes.allowed(stall.code, limit) for stall in stalls):
        yield Evidence(text=f"P2P is allowed up to {limit}: {why}")


def _candidate_hca(recording: Recording, node: FactAt[TopologyFact]) -> list[Remedy]:
    """Return the candidate for NCCL_IB_HCA, if the matrix has one: bonded, otherwise nearest to each GPU."""
    fact = node.fact
    devices = fact.candidate_hcas()
    others = tuple(name for name in fact.hcas().values() if name not in devices)
    index = gid_index_in_words(recording, node.node, devices)
    return [use_hca(devices, others, "; ".join(fact.nearest_in_words()), index)] if devices else []


@rule("DD402", "p2p-may-cross-sockets", Consequence.RISK, TopologyFact)
def p2p_may_cross_sockets(recording: Recording) -> Iterator[Draft]:
    """NCCL may copy directly between GPUs of different sockets.

    Finds: Reports two GPUs without NVLink whose path is SYS (SOC in old drivers), if NCCL allows P2P that far: because
        of NCCL_P2P_LEVEL, or because there are at most two GPUs and the CPU is, or may be, from AMD. Not reported if
        NCCL ran over these GPUs and ended, if NCCL_P2P_DISABLE=1 is set, or if the driver refuses P2P between them.
    Why: NCCL's own limit is PXB, because the link between the sockets carries peer traffic badly. On some machines, the
        first all-reduce hangs at 100% utilization. Most such machines work.
    Remedy: No action is needed unless it hangs. In that case, NCCL_P2P_DISABLE=1 shows whether P2P is the cause; then
        fix ACS and the IOMMU. For several nodes, try the bonded or nearest HCA.
    See: NCCL src/graph/paths.cc, ncclTopoCheckP2p; src/graph/topo.h, PATH_SYS
        NCCL user guide, environment variables NCCL_P2P_LEVEL and NCCL_IB_HCA
    """
    for (pairs, why, _), group in _crossing(recording).items():
        fact = group[0].fact
        names = ", ".join("-".join(pair) for pair in pairs)
        where = hosts_of(recording, group)
        paths = [_path_evidence(pair, fact.links[pair[0]][pair[1]]) for pair in pairs]
        yield possible(
            (culprit(recording, node.node, pair) for node in group for pair in pairs),
            f"NCCL may copy directly between GPUs of different CPU sockets on {where} (P2P over SYS): {names}",
            (*paths, *(Evidence(text=text) for text in fact.nearest_in_words())),
            _without_pcie(fact, "Disable P2P if the job hangs, to route traffic through host memory (workaround)"),
            *([UNSET_LEVEL] if _default_p2p_limit(fact) != "SYS" else []),
            *([] if "NCCL_IB_HCA" in fact.nccl_settings else _candidate_hca(recording, group[0])),
            detail=f"On some machines, such a job hangs in its first all-reduce. Why P2P may reach that far: {why}.",
        )


#: The key of nodes that share a finding: the pairs, what allows P2P between them, and the advice.
_Cause = tuple[tuple[tuple[str, str], ...], str, tuple[str, ...]]


def _crossing(recording: Recording) -> dict[_Cause, list[FactAt[TopologyFact]]]:
    groups: dict[_Cause, list[FactAt[TopologyFact]]] = {}
    settled = nodes_nccl_ran_on(recording.trials) | {stall.node for stall in stalls(recording)}
    unsettled = [node for node in recording.facts(TopologyFact) if node.node not in settled]
    logs = logs_by_node(recording.trials) if unsettled else {}
    for node in unsettled:
        fact, log = node.fact, logs.get(node.node, NcclTransportFact())
        pairs = tuple(
            (gpu, peer)
            for gpu, peer, code in fact.gpu_pairs()
            if link_codes.crosses_sockets(code) and not fact.refuses_p2p(gpu, peer)
        )
        limit, why = fact.p2p_limit(log)
        off = "1" in {log.p2p_disable, fact.nccl_settings.get("NCCL_P2P_DISABLE")}
        if pairs and limit == "SYS" and not off:
            groups.setdefault((pairs, why, fact.candidate_hcas()), []).append(node)
    return groups


def _without_pcie(fact: TopologyFact, summary: str) -> Remedy:
    """Turn P2P off, or only P2P without NVLink if some GPUs have NVLink."""
    if any(link_codes.nvlinks(code) for _, _, code in fact.gpu_pairs()):
        return NVLINK_ONLY.model_copy(update={"summary": summary.replace("P2P", "P2P without NVLink", 1)})
    return DISABLE_P2P.model_copy(update={"summary": summary})


def _path_evidence(gpus: tuple[str, str], code: str) -> Evidence:
    return Evidence(text=f"{'-'.join(gpus)} is {code}: {link_codes.meaning_of(code)}")


def gid_index_in_words(recording: Recording, node: int, devices: Collection[str]) -> str | None:
    """Describe whether the index must be set for these devices; None if unknown.

    NCCL's own choice is predicted only if its release is known, because the choice depends on it, and if other nodes
    reach the entry. Otherwise the rules about RDMA (DD567 to DD569) report more.
    """
    rdma = rdma_of(recording).get(node)
    nccl = next((place.node.version for place in places(recording) if place.seen.node == node), ())
    ports = [port for hca, port in rdma.candidates() if hca.name in devices] if rdma else []
    if rdma is None or not ports:
        return None
    if not any(port.is_roce for port in ports):
        return "InfiniBand needs no NCCL_IB_GID_INDEX"
    if not nccl:
        return None
    unset = {name: value for name, value in rdma.settings.items() if name != roce_gids.INDEX}
    gids = [roce_gids.nccl_choice(port.gids, nccl, unset).gid for port in ports if port.is_roce]
    if not all(gid is not None and gid.is_routable for gid in gids):
        return None
    entries = ", ".join(dict.fromkeys(f"{gid.index} ({gid.address}, RoCE v2)" for gid in gids if gid))
    return f"Leave NCCL_IB_GID_INDEX unset: NCCL {dotted(nccl)} takes entry {entries} by itself"


@once_a_recording
def cluster(recording: Recording, node: int) -> Cluster:
    """Return the kind of cluster of one node, unknown if nothing recorded identifies it."""
    host = next(iter(recording.at(Host, node)), None)
    rdma = rdma_of(recording).get(node)
    maker = Maker(host.vendor, host.product, host.asset_tag, host.network_drivers) if host is not None else Maker()
    has_efa = rdma is not None and any(hca.is_efa for hca in rdma.hcas)
    ports = rdma.ports() if rdma is not None else ()
    # Software devices and Azure's accelerated Ethernet are not a fabric.
    layers = {port.link_layer for hca, port in ports if port.is_active and port.link_layer and hca.bus_id is not None}
    return cluster_of(maker, layers, has_efa=has_efa)


def evidence(recording: Recording, node: int) -> tuple[Evidence, ...]:
    """Return one line of evidence with the kind of cluster, if known."""
    found = cluster(recording, node)
    return () if found.kind == "unknown" else (Evidence(check="host", text=f"this is {found.in_words}"),)


#: Providers that ship an NCCL topology file for their machines, and its path.
_TOPOLOGY_FILES: dict[Kind, tuple[str, str]] = {
    "AWS with EFA": (
        "AWS ships one for p4d and later kinds with aws-ofi-nccl, which points NCCL at it by itself",
        "find /opt/amazon/ofi-nccl /opt/aws-ofi-nccl -name '*topo*.xml'",
    ),
    "Azure with InfiniBand": ("Azure ships one for each ND kind with its HPC images", "ls /opt/microsoft/*topo*.xml"),
}
_ANY = (
    "ask the provider; AWS ships such files with aws-ofi-nccl, Azure with its HPC images",
    "find /opt /etc /usr/share -name '*topo*.xml'",
)


#: This many GPUs below one host bridge, without a switch or NVLink, suggest a virtual machine.
_LEAST_HIDDEN = 4

#: Each path code, and the pairs that it connects.
_Paths = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


@rule("DD412", "p2p-over-pcie-unproved", Consequence.KNOWN, TopologyFact)
def p2p_over_pcie_unproved(recording: Recording) -> Iterator[Draft]:
    """NCCL may copy directly between GPUs over PCIe, which some machines announce but do not support.

    Finds: Reports topologies given to ddp-doctor with GPUs that are not connected by NVLink, not even through others,
        if NCCL allows P2P between them. Behind common PCIe bridges (PIX, PXB), they are always reported. Through a host
        bridge or between host bridges (PHB, NODE, SYS), they are reported if there are two GPUs, or on AMD CPUs with
        NCCL before 2.23. Not reported in a run, which tries these paths itself, or if the driver reports that P2P is
        not available.
    Why: Most such machines work. If a job hangs in its first all-reduce or while it creates the communicator, at 100%
        GPU utilization and without a message, rule this out first.
    Remedy: No action is needed as long as jobs run. If a job hangs in this way, one trial with NCCL_P2P_DISABLE=1 shows
        whether P2P is the cause. Then fix the path: ACS on the bridges, or the IOMMU. ``ddp-doctor run`` tries it.
    See: NVIDIA/nccl issues 667 and 2079, pytorch/pytorch issue 79299, local-inference-lab/rtx6kpro
        issue 15 (two GPUs, Intel): such hangs and what fixed them
        NVIDIA/nccl src/graph/paths.cc, ncclTopoCheckP2p; release notes of NCCL 2.23
    """
    if recording.command is not Command.TOPOLOGY:
        return
    crossing = {node.node for group in _crossing(recording).values() for node in group}  # DD402 reports these
    tested = nodes_nccl_ran_on(recording.trials) | crossing
    nodes = [node for node in recording.facts(TopologyFact) if node.node not in tested and not tree_hidden(node.fact)]
    open_paths = {node.node: _open_paths(recording, node) for node in nodes}
    groups = grouped((open_paths[node.node], node) for node in nodes if open_paths[node.node])
    for paths, group in groups.items():
        shown = "; ".join(f"{_pairs(pairs)} over {code}" for code, pairs in paths)
        fact = group[0].fact
        uses = "NCCL uses"
        if not any(link_codes.allowed(code, _default_p2p_limit(fact)) for code, _ in paths):
            uses = "NCCL before 2.23 uses" if fact.cpu_vendor else "NCCL may use"
        yield possible(
            NOBODY,
            f"{uses} untested direct copies (P2P) over PCIe on {hosts_of(recording, group)}: {shown}",
            (_unproved_evidence(fact, code, pairs) for code, pairs in paths),
            _without_pcie(fact, "Disable P2P if a job hangs, to see whether P2P is the cause"),
            REPAIR_PATH.model_copy(update={"summary": "Repair the path (ACS or the IOMMU) if that helps"}),
            detail="No fault was seen, and most such machines work. On some, P2P over PCIe"
            " is offered but does not work, and the first all-reduce hangs. Libraries"
            " with their own all-reduce (vLLM, SGLang) also copy directly;"
            " --disable-custom-all-reduce turns theirs off.",
        )


def _open_paths(recording: Recording, node: FactAt[TopologyFact]) -> _Paths:
    """Return the pairs between which NCCL may use P2P without NVLink, by code from near to far."""
    fact = node.fact
    if fact.nccl_settings.get("NCCL_P2P_DISABLE") == "1":
        return ()
    mine = [host for host in p2p_status.hosts(recording) if host.seen.node == node.node]
    refused = {pair.pair for host in mine for pair in host.refused()}
    on_amd = fact.cpu_vendor in {None, link_codes.SYS_BY_DEFAULT_VENDOR}
    bridged = connected(fact.gpus, [(gpu, peer) for gpu, peer, code in fact.gpu_pairs() if link_codes.nvlinks(code)])
    by_code: dict[str, list[tuple[str, str]]] = {}
    faulty = without_nvlinks(fact)  # DD403 or DD406 reports them
    for gpu, peer, code in fact.gpu_pairs():
        if {gpu, peer} & faulty:
            continue
        near = link_codes.allowed(code, link_codes.DEFAULT_P2P_LIMIT)
        few = len(fact.gpus) <= link_codes.SYS_BY_DEFAULT_GPUS and not link_codes.crosses_sockets(code)
        if bridged[gpu] != bridged[peer] and (near or on_amd or few) and (gpu, peer) not in refused:
            by_code.setdefault(code, []).append((gpu, peer))
    return tuple(
        (code, tuple(by_code[code])) for code in sorted(by_code, key=lambda code: link_codes.link_code(code).distance)
    )


def _unproved_evidence(fact: TopologyFact, code: str, pairs: Sequence[tuple[str, str]]) -> Evidence:
    if link_codes.allowed(code, link_codes.DEFAULT_P2P_LIMIT):
        why = "NCCL uses P2P here by itself"
    elif len(fact.gpus) <= link_codes.SYS_BY_DEFAULT_GPUS:
        why = "NCCL uses P2P here on AMD CPUs, and such hangs were reported on Intel ones too"
    else:
        why = "NCCL before 2.23 uses P2P here on AMD CPUs"
    return Evidence(text=f"{_pairs(pairs)} over {code}, {link_codes.meaning_of(code)}: {why}")


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return ", ".join("-".join(pair) for pair in pairs) if len(pairs) <= 4 else f"{len(pairs)} pairs"


@rule("DD413", "pcie-tree-hidden", Consequence.KNOWN, TopologyFact)
def pcie_tree_hidden(recording: Recording) -> Iterator[Draft]:
    """All GPUs appear below one host bridge, probably because of a virtual machine.

    Finds: Reports four or more GPUs that are all connected by PHB and have the same CPUs. Not reported if
        NCCL_TOPO_FILE is set.
    Why: NCCL builds its rings from this tree. If the machine hides which GPUs share a switch or a socket, rings cross
        the sockets at random. With the provider's topology file, one user's training went from seven hours to four and
        a half.
    Remedy: Set NCCL_TOPO_FILE to the file that the provider supplies for this type of machine. It must match the
        machine exactly: a wrong file is worse than none.
    See: NVIDIA/nccl issue 1298; aws/aws-ofi-nccl and Azure/azhpc-images, folders topology
        NCCL user guide, environment variable NCCL_TOPO_FILE
    """
    for ranges, group in by_cause(recording.facts(TopologyFact), _hidden_behind).items():
        kinds = {cluster(recording, node.node).kind for node in group}
        who, command = _TOPOLOGY_FILES.get(kinds.pop(), _ANY) if len(kinds) == 1 else _ANY
        yield finding(
            NOBODY,
            f"All GPUs of {hosts_of(recording, group)} appear below one PCIe host bridge:"
            " a virtual machine may hide the real PCIe tree",
            (
                Evidence(text="every GPU pair is PHB, and all GPUs have the same CPUs"),
                *([Evidence(text=f"their NUMA affinity is {ranges}")] if ranges else []),
                *evidence(recording, group[0].node),
            ),
            remedy(
                f"Set NCCL_TOPO_FILE to NCCL's topology file for this type of machine: {who}",
                command,
                scope="job",
                cost="a file from another type of machine misleads NCCL",
                undo="unset NCCL_TOPO_FILE",
                untried="the provider owns the file",
                references=("https://github.com/NVIDIA/nccl/issues/1298",),
            ),
            confidence=Confidence.LIKELY if "-" in ranges else Confidence.POSSIBLE,
            detail="NCCL cannot see which GPUs are near each other. If jobs are fast, nothing is wrong.",
        )


def tree_hidden(fact: TopologyFact) -> bool:
    """Return True if all GPUs are below one host bridge, as virtual machines show them."""
    return (
        len(fact.gpus) >= _LEAST_HIDDEN
        and fact.source != "nccl-xml"  # it also calls NODE PHB
        and all(fact.links[gpu].get(two) == "PHB" for gpu in fact.gpus for two in fact.gpus if gpu != two)
        and len(set(fact.cpu_affinity.values())) == 1
    )


def _hidden_behind(fact: TopologyFact) -> str | None:
    """Return the NUMA node that all GPUs share, "" if unknown; None if the tree is not hidden."""
    if not tree_hidden(fact) or "NCCL_TOPO_FILE" in fact.nccl_settings:
        return None
    shared = set(fact.numa_affinity.values())
    return next(iter(shared)) or "" if len(shared) == 1 else ""
