"""DD563, DD571: ports that NCCL may take and should not, and a setting that leaves it none."""

from collections.abc import Iterator, Sequence

from ddp_doctor.checks.node.rdma.nodes import distance, fast_and_others, users
from ddp_doctor.checks.node.rdma.wording import Hit, port_draft, port_name, use_ports
from ddp_doctor.facts.node.rdma import Hca, Port, RdmaFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.nccl_hca import HCA
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.settings import NO_TRIAL, unset
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.reproducers import everybody
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import by_cause, host, name_list, node_culprits, node_names

_DOCS = "NCCL src/transport/net_ib/init.cc and src/misc/utils.cc, matchIfList"


@rule("DD563", "rdma-ports-of-different-kinds", Severity.INFO, RdmaFact)
def different_kinds(recording: Recording) -> Iterator[Draft]:
    """NCCL may take a management or storage port beside the fast ones.

    What it finds
        For NCCL on several nodes without NCCL_IB_HCA: active ports of InfiniBand and of Ethernet, or ports with
        less than half of the fastest one's rate. Silent where the topology says that every GPU has a fast port
        nearer than any of those, and all are of one kind. Information: NCCL mostly chooses well.

    Why it matters
        A rank that takes an Ethernet port cannot connect to one that takes InfiniBand: "Remote RoCE device is
        incompatible with the local … Try selecting NICs of only one link type using NCCL_IB_HCA".

    Remedy
        NCCL_IB_HCA with the fast ports.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
        NCCL src/transport/net_ib/connect.cc, ncclIbConnect
    """
    fast: dict[int, list[tuple[Hca, Port]]] = {}
    others: list[Hit] = []
    for seen in users(recording):
        if seen.fact.settings.get(HCA):
            continue
        best, others_here = fast_and_others(seen.fact.chosen())
        models = {hca.model for hca, _ in best}
        rest = [(hca, port) for hca, port in others_here if hca.model not in models]
        fast[seen.node] = [*best, *(one for one in others_here if one not in rest)]
        if rest and not _is_well_chosen(recording, seen, best, rest):
            others += [(seen.node, hca, port) for hca, port in rest]
    if not others:
        return
    remedy = use_ports(recording, fast, "only ports of the fabric between the nodes")
    yield port_draft(
        recording,
        others,
        "NCCL may take it beside the faster ports"
        if len({hca.name for _, hca, _ in others}) == 1
        else "NCCL may take these beside faster ones",
        lambda hit: f"{hit[2].link_layer}, {hit[2].rate}",
        *([remedy] if remedy else []),
        detail="NCCL uses every active port that it is not told to leave. Mostly it prefers the fast ones.",
        severity=Severity.INFO,
        confidence=Confidence.POSSIBLE,
    ).model_copy(update={"reproduced_by": everybody(recording)})


def _is_well_chosen(
    recording: Recording,
    seen: FactAt[RdmaFact],
    best: Sequence[tuple[Hca, Port]],
    rest: Sequence[tuple[Hca, Port]],
) -> bool:
    """Whether NCCL will leave the others alone: they are of one kind with the best, and farther from all GPUs."""
    if {port.link_layer for _, port in best} != {port.link_layer for _, port in rest}:
        return False
    fact = next(iter(recording.at(TopologyFact, seen.node)), None)
    near, far = {hca.name for hca, _ in best}, {hca.name for hca, _ in rest}
    return fact is not None and all(distance(fact, gpu, near) < distance(fact, gpu, far) for gpu in fact.gpus)


@rule("DD571", "nccl-ib-hca-matches-nothing", Severity.ERROR, RdmaFact)
def matches_nothing(recording: Recording) -> Iterator[Draft]:
    """NCCL_IB_HCA names devices that are not there.

    What it finds
        For NCCL on several nodes: a node with active RDMA ports of which NCCL_IB_HCA allows none (an error);
        or a name in it that no device of the node has or begins with, while others match (a warning).

    Why it matters
        NCCL says nothing and takes TCP, many times slower; and where other nodes do have a port, its ranks
        cannot connect to theirs. Names differ between machines: mlx5_4 here is mlx5_2 there.

    Remedy
        The names that the node has, or no setting where NCCL takes the right ports by itself.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    for (value, missing, fatal), group in by_cause(users(recording), _unmatched).items():
        told = shown(HCA, value)
        title = (
            f"{told} allows none of the RDMA ports that are up on {node_names(recording, group)}"
            if fatal
            else f"{told} names {name_list(missing)}, not to be found on {node_names(recording, group)}"
        )
        detail = (
            "NCCL then takes TCP without a word, and cannot connect to nodes that use RDMA."
            if fatal
            else "NCCL does with the others, without a word."
        )
        best = {seen.node: fast_and_others(seen.fact.candidates()) for seen in group}
        fast = {node: ports for node, (ports, _) in best.items()}
        unneeded = not any(rest for _, rest in best.values())  # NCCL takes these and no others by itself
        instead = None if unneeded else use_ports(recording, fast, "the fast ports that are up here")
        yield proved(
            (
                one.model_copy(update={"kind": "setting", "name": HCA})
                for one in node_culprits(recording, group)
            ),
            title,
            (_devices_seen(recording, seen) for seen in group[:8]),
            unset({HCA: value}, "NCCL finds active ports itself", proof=NO_TRIAL),
            *([instead] if instead else []),
            detail=detail,
            severity=Severity.ERROR if fatal else Severity.WARNING,
            reproduced_by=everybody(recording),
        )


def _unmatched(fact: RdmaFact) -> tuple[str, tuple[str, ...], bool] | None:
    value = fact.settings.get(HCA, "")
    if not nccl_hca.entries(value) or nccl_hca.is_exclusion(value) or not fact.candidates():
        return None
    exact, names = nccl_hca.is_exact(value), [hca.name for hca in fact.hcas]
    missing = tuple(
        word
        for word, _ in nccl_hca.entries(value)
        if not any(name == word if exact else name.startswith(word) for name in names)
    )
    fatal = not fact.chosen()
    return (value, missing, fatal) if missing or fatal else None


def _devices_seen(recording: Recording, seen: FactAt[RdmaFact]) -> Evidence:
    ports = [port_name(hca, port) for hca, port in seen.fact.candidates()]
    more = f" and {len(ports) - 12} more" if ports[12:] else ""
    text = f"active on {host(recording, seen.node)}: {', '.join(ports[:12])}{more}"
    return Evidence(text=text, expected_from=_DOCS)
