r"""RDMA ports after the ranks have exited: links that went down, lost packets, bit errors.

Absolute counters mean little: they count since the driver was loaded, and every reboot of a switch changes them. Their
growth while ranks used the ports is meaningful. Raw input, compared with what the check rdma read before the ranks
started::

    /sys/class/infiniband/mlx5_0/ports/1/state                             4: ACTIVE
    /sys/class/infiniband/mlx5_0/ports/1/counters/link_downed              1
    /sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error             0
    /sys/class/infiniband/mlx5_0/ports/1/hw_counters/local_ack_timeout_err 0
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from ddp_doctor.checks.node.rdma import wording
from ddp_doctor.checks.node.rdma.nodes import Change, changes, for_later_jobs
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.rdma import RdmaAfterFact, RdmaFact
from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.rdma import (
    BIT_ERROR_RATE,
    GAPS,
    LEAST_ERRORS,
    LINK_ERRORS,
    LOSSES,
    MOST_HCAS,
    RECOVERIES,
    ROCE_GAPS,
    ROCE_LOSSES,
)
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Consequence, Severity, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent
from ddp_doctor.model.finding import Draft, Evidence, Remedy, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.nccl_log import settings_in
from ddp_doctor.probing import rdma
from ddp_doctor.remedies import nccl
from ddp_doctor.remedies.kinds import NO_TRIAL, by_administrator, unset
from ddp_doctor.views.failed_trials import RankComplaint, nodes_of, rank_complaints
from ddp_doctor.views.reproducers import between, everybody
from ddp_doctor.views.transports import texts
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.nccl_complaints import complaint_lines
from ddp_doctor.wording.nodes import host, name_list, node_culprit, node_pair


@rule("DD566", "rdma-link-down-during-run", Consequence.FAILS, RdmaFact, RdmaAfterFact)
def rdma_link_down_during_run(recording: Recording) -> Iterator[Draft]:
    """An RDMA link went down while the ranks ran.

    Finds: Reports ports that were up before the ranks ran and are not up afterwards, and ports whose link_downed, or
        whose interface's carrier_changes, grew in that time. Severity is error for ports that NCCL uses between nodes,
        and info otherwise.
    Why: A link that goes down within a minute will go down within hours of training. The job then fails with "Got
        completion … status 12".
    Remedy: Check the cable, the transceiver and the switch port.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-timeout
    """
    went_down = [change for change in changes(recording) if _went_down(change)]
    for used in (True, False):
        described = [(change.hit, _down_in_words(change)) for change in went_down if change.is_used == used]
        if described:
            yield wording.port_draft(
                recording,
                described,
                "the RDMA link went down while the ranks ran",
                wording.look_at_link(described, "A link that is unsteady"),
                detail="NCCL's connections over it stall, and fail if it lasts longer than their retries.",
                severity=Severity.ERROR if used else Severity.INFO,
                confidence=Confidence.PROVED,
            )


def _went_down(change: Change) -> bool:
    gone = change.state is not None and change.state != "ACTIVE"
    return gone or bool(change.grown.get("link_downed")) or change.carrier_changes > 0


def _down_in_words(change: Change) -> str:
    parts = [f"ACTIVE before, {change.state or 'unknown'} after"]
    if change.grown.get("link_downed"):
        parts.append(f"link_downed +{change.grown['link_downed']}")
    if change.carrier_changes:
        parts.append(f"carrier_changes +{change.carrier_changes}")
    return f"{', '.join(parts)} in {change.seconds:.0f} s"


@rule("DD579", "rdma-packets-lost-during-run", Consequence.COST, RdmaFact, RdmaAfterFact)
def rdma_packets_lost_during_run(recording: Recording) -> Iterator[Draft]:
    """RDMA packets were lost or rejected while the ranks ran.

    Finds: For NCCL on several nodes, if every trial completed, reports counters of retransmitted packets
        (packet_seq_err, local_ack_timeout_err, rnr_nak_retry_err and similar ones) that grew by ten or more on a port
        that NCCL uses. On Ethernet, out_of_sequence also counts.
    Why: RDMA retransmits everything from the lost packet on, so a loss of 0.1% costs most of the rate. RoCE needs a
        lossless network: priority flow control or ECN, with equal settings on hosts and switches.
    Remedy: Configure flow control and traffic class as designed for this fabric. On InfiniBand, check the links on the
        path.
    See: https://docs.nvidia.com/networking/display/mlnxofedv461000/rdma+over+converged+ethernet+(roce)
        NVIDIA/nccl issue 426
    """
    if any(trial.outcome != "finished" for trial in recording.trials):
        return  # ranks that were stopped leave their peers without an answer
    described = [
        (change.hit, change.in_words(_losses(change)))
        for change in changes(recording)
        if change.is_used and change.growth(_losses(change)) >= LEAST_ERRORS
    ]
    if described:
        yield wording.port_draft(
            recording,
            described,
            "RDMA packets were lost while the ranks ran",
            wording.LOSSLESS
            if any(port.is_roce for (_, _, port), _ in described)
            else wording.look_at_link(described, "A link that loses packets"),
            detail="Other jobs on the port count as well. Each loss is paid with everything that followed it.",
        )


def _losses(change: Change) -> tuple[str, ...]:
    return ROCE_LOSSES if change.hit[2].is_roce else LOSSES


@rule("DD580", "rdma-link-errors-during-run", Consequence.RISK, RdmaFact, RdmaAfterFact)
def rdma_link_errors_during_run(recording: Recording) -> Iterator[Draft]:
    """The RDMA link itself had errors while the ranks ran.

    Finds: Reports ports whose symbol_error grew faster than one wrong bit in 10^12 allows, whose receive errors grew by
        ten or more, or whose link was retrained (link_error_recovery). On a single node, severity is info.
    Why: These errors are the first sign of a failing cable or transceiver: packets are retransmitted, then the link
        slows down or goes down.
    Remedy: Check the cable, the transceiver and the switch port.
    See: https://docs.kernel.org/admin-guide/abi-stable.html
    """
    described = [
        (change.hit, change.in_words(("symbol_error", RECOVERIES, *LINK_ERRORS)))
        for change in changes(recording)
        if _has_errors(change) and not _went_down(change)
    ]
    if described:
        yield wording.port_draft(
            recording,
            described,
            "errors on the RDMA link while the ranks ran",
            wording.look_at_link(described, "A link with errors"),
            detail="A cable or transceiver that begins to fail shows here first.",
            severity=for_later_jobs(recording, Severity.WARNING),
            expected=f"at most one wrong bit in {1 / BIT_ERROR_RATE:.0e}",
        )


def _has_errors(change: Change) -> bool:
    bits = (change.hit[2].rate_gbit_per_s or 0.0) * 1e9 * change.seconds
    symbols = change.grown.get("symbol_error", 0)
    wrong = max(LEAST_ERRORS, BIT_ERROR_RATE * bits)
    return symbols > wrong or change.growth(LINK_ERRORS) >= LEAST_ERRORS or bool(change.grown.get(RECOVERIES))


_PEER = re.compile(r"from peer ([0-9a-fA-F.:]{2,45})<")
_DEVICE = re.compile(r"\bhca ([\w-]+)")
_MOST_PORTS = 6
_RESENT = "Packets were sent again during the run and the links stayed up, so the network loses packets."
_NOTHING_RESENT = "The counters do not show why: check addresses, MTU, routes and the switch."


@rule("DD584", "rdma-send-never-acknowledged", Consequence.FAILS, explained_by=("DD566", "DD567", "DD568", "DD569"))
def rdma_send_never_acknowledged(recording: Recording) -> Iterator[Draft]:
    """A send over RDMA failed because its acknowledgment never arrived (status 12).

    Finds: Reports trials that failed although all their ranks were alive, with NCCL's message "Got completion …
        status=12". Not reported if an unreachable GID entry or a link that went down has its own error.
    Why: The data was lost seven times within half a minute, so the path carries no RDMA or loses packets. The job
        fails, immediately or after hours.
    Remedy: Unset settings that make NCCL give up sooner. If packets were retransmitted during the trial and no link
        went down, NCCL_IB_TIMEOUT=22 waits longer; also correct the flow control. Otherwise, test the path without
        NCCL: addresses, MTU and routes. One trial with NCCL_IB_DISABLE=1 shows whether RDMA is the cause.
    See: NCCL user guide, NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT; NVIDIA/nccl issue 426
        libibverbs, enum ibv_wc_status: IBV_WC_RETRY_EXC_ERR
    """
    group = rank_complaints(recording, "DD584")
    if not group:
        return
    pair = _pair_of_nodes(recording, group)
    where = " and ".join(host(recording, node) for node in pair) if pair else "the nodes"
    # If packets came late or twice, the path still partly works. Missing acknowledgments do not show that, because
    # stopped ranks also cause them.
    lossy = [
        change
        for change in changes(recording)
        if change.is_used
        and _is_on_the_path(change, group, pair)
        and change.growth((*GAPS, *ROCE_GAPS) if change.hit[2].is_roce else GAPS) >= LEAST_ERRORS
    ]
    counted = [
        f"{wording.port_name(hca, port)} on {host(recording, node)}: {change.in_words(_losses(change))}"
        for change in lossy[:_MOST_PORTS]
        for node, hca, port in [change.hit]
    ]
    nodes = nodes_of(group)
    # A missing acknowledgment does not show which of the two ends is at fault.
    one_node = (node_culprit(recording, nodes[0]),) if len(nodes) == 1 else ()
    yield likely(
        (node_pair(recording, *pair),) if pair else one_node,
        f"RDMA between {where}: data that NCCL sent was never acknowledged (status 12)",
        (*complaint_lines(recording, group), *(Evidence(check="rdma_after", text=text) for text in counted)),
        *_remedies(recording, group, lossy),
        detail="All ranks were alive. " + (_RESENT if lossy else _NOTHING_RESENT),
        reproduced_by=between(recording, _first_ranks_of(group, pair)) if pair else everybody(recording),
    )


def _is_on_the_path(change: Change, group: Sequence[RankComplaint], pair: tuple[int, int] | None) -> bool:
    """Return True if the complaints are about this device, or name no device."""
    node, hca, _ = change.hit
    named = {found[1] for complaint in group if (found := _DEVICE.search(complaint.text))}
    return not named or (hca.name in named and (pair is None or node in pair))


def _pair_of_nodes(recording: Recording, group: Sequence[RankComplaint]) -> tuple[int, int] | None:
    """Return the two nodes if all complaints are about one pair; node check-in provides the addresses."""
    world = recording.world
    if world is None or world.nnodes < 2:
        return None
    if world.nnodes == 2:
        return (0, 1)
    node_of = {
        address: node.node_rank
        for node in world.nodes
        for addresses in node.addresses.values()
        for address in addresses
    }
    pairs = set()
    for complaint in group:
        address = _PEER.search(complaint.text)
        peer = node_of.get(address[1]) if address else None
        if peer is None or peer == complaint.node:
            return None
        pairs.add((min(complaint.node, peer), max(complaint.node, peer)))
    return pairs.pop() if len(pairs) == 1 else None


def _first_ranks_of(group: Sequence[RankComplaint], pair: tuple[int, int]) -> tuple[int, int]:
    """Return a rank of each node that took part in the trial, preferring ranks that logged a complaint."""
    spoke = [complaint.rank for complaint in group]

    def end(node: int) -> int:
        ranks = (evidence.rank for evidence in group[0].trial.evidence if evidence.node == node)
        return min(ranks, key=lambda rank: (rank not in spoke, rank))

    return end(pair[0]), end(pair[1])


def _remedies(recording: Recording, group: Sequence[RankComplaint], lossy: Sequence[Change]) -> Iterator[Remedy]:
    node = group[0].node
    env: Mapping[str, str] = next((at.fact.variables for at in recording.facts(EnvVars) if at.node == node), {})
    settings = {**env, **settings_in(texts(recording).get(node, ""))}
    if sooner := wording.lowered(settings):
        summary = f"Take {name_list(list(sooner))} away, which make NCCL give up sooner"
        yield unset(sooner, "NCCL then waits for its default time", summary, NO_TRIAL)
    elif lossy:
        before, after = (wording.wait_s(timeout) for timeout in (wording.DEFAULT_TIMEOUT, wording.LONGER_TIMEOUT))
        why = f"NCCL then gives a send up after {after:.0f} s instead of {before:.0f} s"
        yield nccl.by_setting(
            "Wait longer for what the fabric delays, until it loses nothing any more",
            Setting(name=wording.TIMEOUT, value=str(wording.LONGER_TIMEOUT), why=why),
            cost="later detection of a dead path; lost packets are still resent",
        )
    if any(change.hit[2].is_roce for change in lossy):
        yield wording.LOSSLESS
    used = (change.hit[1].name for change in changes(recording) if change.is_used)
    name = next((name for name in used if nccl_hca.is_name(name)), "DEVICE")
    yield by_administrator(
        "Test the path without NCCL, from one of the nodes to the other",
        f"ib_write_bw -d {name} -R   # on one node",
        f"ib_write_bw -d {name} -R HOST   # on the other",
        cost="a few seconds; perftest must be installed",
        references=("https://github.com/linux-rdma/perftest",),
    )
    yield wording.SOCKETS_ON_ALL.model_copy(
        update={"summary": "Rule RDMA out: let the nodes talk over TCP until the path is repaired"}
    )


def probe(ctx: Context) -> RdmaAfterFact:
    """Read states and counters again. Raises Absent if there are no devices."""
    names = rdma.hca_names(ctx)
    if not names:
        raise Absent("no RDMA device found")
    return RdmaAfterFact(ports=rdma.read_after(ctx, names[:MOST_HCAS]))


CHECK = Check(
    id="rdma_after",
    title="RDMA ports after the ranks: links that went down, packets lost, errors on the link",
    where=Where.AFTERWARDS,
    probe=probe,
    facts=(RdmaAfterFact,),
    rules=(
        rdma_link_down_during_run,
        rdma_packets_lost_during_run,
        rdma_link_errors_during_run,
        rdma_send_never_acknowledged,
    ),
    cost_s=0.05,
)
