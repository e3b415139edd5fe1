"""DD566, DD579, DD580: links that went down, packets that were lost and errors on the link during the run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ddp_doctor.checks.node.rdma.nodes import for_later_jobs, identity, is_of_a_card, users
from ddp_doctor.checks.node.rdma.wording import LOSSLESS, Hit, look_at_link, port_draft
from ddp_doctor.facts.node.rdma import PortAfter, RdmaAfterFact, RdmaFact
from ddp_doctor.knowledge.network.rdma import (
    BIT_ERROR_RATE,
    LEAST_ERRORS,
    LINK_ERRORS,
    LOSSES,
    RECOVERIES,
    ROCE_LOSSES,
)
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule


@dataclass(frozen=True)
class Change:
    """One port that was up before the ranks, and what became of it."""

    hit: Hit
    seconds: float  # between the two looks
    state: str | None
    grown: Mapping[str, int]
    carrier_changes: int
    is_used: bool  # by NCCL, between nodes

    def told(self, names: Sequence[str]) -> str:
        """Some counters and what they grew by."""
        grown = [f"{name} +{self.grown[name]}" for name in names if self.grown.get(name)]
        return f"{', '.join(grown)} in {self.seconds:.0f} s"


def changes(recording: Recording) -> list[Change]:
    """The ports that were up before the ranks; a counter that is smaller afterwards was cleared, and left out."""
    return recording.once("rdma: changes", lambda: _changes(recording))


def _changes(recording: Recording) -> list[Change]:
    used = {identity((seen.node, hca, port)) for seen in users(recording) for hca, port in seen.fact.chosen()}
    before = {seen.node: seen for seen in recording.facts(RdmaFact)}
    return [
        change
        for after in recording.facts(RdmaAfterFact)
        if after.node in before
        for change in _of_node(before[after.node], after, used)
    ]


def _of_node(
    before: FactAt[RdmaFact], after: FactAt[RdmaAfterFact], used: set[tuple[int, str, int]]
) -> Iterator[Change]:
    known: dict[tuple[str, int], PortAfter] = {(port.hca, port.number): port for port in after.fact.ports}
    for hca, port in before.fact.ports():
        now = known.get((hca.name, port.number))
        if now is None or not port.is_active or not is_of_a_card(hca):
            continue
        hit = (before.node, hca, port)
        netdev = before.fact.netdev(port) if port.is_roce else None
        changed = (now.carrier_changes or 0) - (netdev.carrier_changes or 0) if netdev else 0
        yield Change(
            hit=hit,
            seconds=max(after.reading.started_at - before.reading.started_at, 1.0),
            state=now.state,
            grown={
                name: count - port.counters[name]
                for name, count in now.counters.items()
                if name in port.counters and count > port.counters[name]
            },
            carrier_changes=max(changed, 0) if now.carrier_changes is not None else 0,
            is_used=identity(hit) in used,
        )


@rule("DD566", "rdma-link-down-during-run", Severity.ERROR, RdmaFact, RdmaAfterFact)
def link_down(recording: Recording) -> Iterator[Draft]:
    """An RDMA link that went down while the ranks ran.

    What it finds
        A port that was up before the ranks and is not afterwards, or whose link_downed, or whose interface's
        carrier_changes, grew meanwhile. An error for ports that NCCL takes between nodes; else information.

    Why it matters
        A link that goes down within a minute will do so within hours of training, and the job fails with "Got
        completion … status 12".

    Remedy
        The cable, the transceiver or the switch port.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-timeout
    """
    went_down = [change for change in changes(recording) if _went_down(change)]
    for used in (True, False):
        some = {identity(one.hit): one for one in went_down if one.is_used == used}
        if some:
            hits = [one.hit for one in some.values()]
            yield port_draft(
                recording,
                hits,
                "the RDMA link went down while the ranks ran",
                partial(_told_down, some),
                look_at_link(hits, "A link that is unsteady"),
                detail="NCCL's connections over it stall, and fail where it lasts longer than their retries.",
                severity=Severity.ERROR if used else Severity.INFO,
                confidence=Confidence.PROVED,
            )


def _went_down(change: Change) -> bool:
    gone = change.state is not None and change.state != "ACTIVE"
    return gone or bool(change.grown.get("link_downed")) or change.carrier_changes > 0


def _told_down(some: Mapping[tuple[int, str, int], Change], hit: Hit) -> str:
    change = some[identity(hit)]
    parts = [f"ACTIVE before, {change.state or 'unknown'} after"]
    if change.grown.get("link_downed"):
        parts.append(f"link_downed +{change.grown['link_downed']}")
    if change.carrier_changes:
        parts.append(f"carrier_changes +{change.carrier_changes}")
    return f"{', '.join(parts)} in {change.seconds:.0f} s"


@rule("DD579", "rdma-packets-lost-during-run", Severity.WARNING, RdmaFact, RdmaAfterFact)
def packets_lost(recording: Recording) -> Iterator[Draft]:
    """RDMA packets that were lost, or refused, while the ranks ran.

    What it finds
        For NCCL on several nodes, where every trial came to its end: counters of packets sent again (packet_seq_err,
        local_ack_timeout_err, rnr_nak_retry_err and their like) that grew by ten or more on a port that NCCL
        takes; on Ethernet out_of_sequence too.

    Why it matters
        RDMA sends from the lost packet on again, so that a loss of 0.1 % costs most of the rate. RoCE needs a network
        that loses nothing: priority flow control or ECN, set alike on hosts and switches.

    Remedy
        Flow control and traffic class as the fabric's plan says; on InfiniBand the links on the way.

    References
        https://docs.nvidia.com/networking/display/mlnxofedv461000/rdma+over+converged+ethernet+(roce)
        NVIDIA/nccl issue 426
    """
    if any(trial.outcome != "finished" for trial in recording.trials):
        return  # ranks that were ended in the midst leave their peers without an answer
    some = {
        identity(change.hit): change
        for change in changes(recording)
        if change.is_used and sum(change.grown.get(name, 0) for name in _losses(change)) >= LEAST_ERRORS
    }
    if some:
        yield port_draft(
            recording,
            [one.hit for one in some.values()],
            "RDMA packets were lost while the ranks ran",
            lambda hit: some[identity(hit)].told(_losses(some[identity(hit)])),
            LOSSLESS,
            detail="Other jobs on the port count as well. Each loss is paid with everything that followed it.",
            severity=Severity.WARNING,
        )


def _losses(change: Change) -> tuple[str, ...]:
    return ROCE_LOSSES if change.hit[2].is_roce else LOSSES


@rule("DD580", "rdma-link-errors-during-run", Severity.WARNING, RdmaFact, RdmaAfterFact)
def link_errors(recording: Recording) -> Iterator[Draft]:
    """Errors on the RDMA link itself while the ranks ran.

    What it finds
        A port whose symbol_error grew faster than one wrong bit in 10^12 allows, whose receive errors grew by ten or
        more, or whose link trained anew (link_error_recovery). Information in a run of one node.

    Why it matters
        A cable or transceiver that begins to fail shows here first: packets are sent again, then the link
        slows down or goes down.

    Remedy
        The cable, the transceiver or the switch port.

    References
        https://docs.kernel.org/admin-guide/abi-stable.html
    """
    some = {
        identity(change.hit): change
        for change in changes(recording)
        if _has_errors(change) and not _went_down(change)
    }
    if some:
        hits = [one.hit for one in some.values()]
        names = ("symbol_error", RECOVERIES, *LINK_ERRORS)
        yield port_draft(
            recording,
            hits,
            "errors on the RDMA link while the ranks ran",
            lambda hit: some[identity(hit)].told(names),
            look_at_link(hits, "A link with errors"),
            detail="A cable or transceiver that begins to fail shows here first.",
            severity=for_later_jobs(recording, Severity.WARNING),
            expected=f"at most one wrong bit in {1 / BIT_ERROR_RATE:.0e}",
        )


def _has_errors(change: Change) -> bool:
    bits = (change.hit[2].rate_gbit_per_s or 0.0) * 1e9 * change.seconds
    symbols = change.grown.get("symbol_error", 0)
    wrong = max(LEAST_ERRORS, BIT_ERROR_RATE * bits)
    bad = sum(change.grown.get(name, 0) for name in LINK_ERRORS)
    return symbols > wrong or bad >= LEAST_ERRORS or bool(change.grown.get(RECOVERIES))
