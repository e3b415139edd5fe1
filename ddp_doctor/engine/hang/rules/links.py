"""Ranks that connect and then disagree, or cannot reach each other."""

from collections.abc import Collection, Iterator

from ddp_doctor.engine.hang.rules.common import MOST_LINES, Case, cases, link_remedies, names
from ddp_doctor.engine.waits.standings import Call
from ddp_doctor.facts.collectives import P2pFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.views import failed_trials
from ddp_doctor.views.reproducers import between, is_across
from ddp_doctor.wording.findings import NOBODY, finding, likely
from ddp_doctor.wording.nodes import host, node_culprit, node_pair
from ddp_doctor.wording.ranks import pair_culprit, rank_at, rank_culprit, rank_list, ranks_at


@rule("DD614", "ranks-call-different-collectives", Consequence.HANGS)
def mismatch(recording: Recording) -> Iterator[Draft]:
    """Ranks called different operations, shapes or types at the same point.

    Finds: At one sequence number, the ranks called different operations, or one operation with different shapes or
        types. torch's flight recorder shows the call that each rank enqueued.
    Why: The result is a hang, a broken connection or a wrong sum, and no message names the rank.
    Remedy: Make the calls of the ranks agree. The cause is usually a branch, a data-dependent shape or an uneven last
        batch.
    See: TORCH_DISTRIBUTED_DEBUG=DETAIL compares every collective at a price
    """
    for case in cases(recording, "mismatch"):
        judgment, calls = case.judgment, _calls(case)
        in_flight = {
            rank: f"collective {call.seq} is {call.op} {_sizes(call.sizes)} {' '.join(call.dtypes)}"
            for rank, call in judgment.flights
        }
        recorded = (
            Evidence(check=case.check, text=f"{ranks}: {call} (flight recorder)")
            for call, ranks in list(_by_call(in_flight).items())[:MOST_LINES]
        )
        theirs = sorted({calls[rank] for rank in judgment.waiting if rank in calls})
        mine = sorted({calls[rank] for rank in judgment.suspects if rank in calls})
        if judgment.suspects and mine:
            title = (
                f"{case.names} called {', '.join(mine)} in check {case.check}, but"
                f" {rank_list(judgment.waiting)} called {', '.join(theirs)}"
            )
        else:
            every = "; ".join(f"{ranks} called {call}" for call, ranks in _by_call(calls).items())
            title = f"Ranks call different collectives in check {case.check}"
            title += f": {every}" if every else ""
        yield finding(
            case.culprits,
            title,
            (*recorded, *case.waiting_evidence),
            remedy("Make that rank call the same collectives as the other ranks", scope="code"),
            confidence=case.confidence if judgment.suspects else Confidence.LIKELY,
            detail="All ranks must call collectives in the same order, with the same shape and type."
            f"{case.proof_words}",
        )


def _calls(case: Case) -> dict[int, str]:
    """Return each rank's call from its flight recorder; without any recorder, the announced call."""
    if case.judgment.flights:
        return {rank: _words(call) for rank, call in case.judgment.flights}
    steps = {rank.rank: rank.open_step for rank in case.trial.evidence}
    return {rank: f"{step.name} {step.detail}".strip() for rank, step in steps.items() if step is not None}


def _words(call: Call) -> str:
    of = f" of shape{'s' if len(call.sizes) > 1 else ''} {_sizes(call.sizes)}" if call.sizes else ""
    return f"{call.op}{of}"


def _by_call(calls: dict[int, str]) -> dict[str, str]:
    """Return the ranks of each call, as text."""
    by_call = grouped((call, rank) for rank, call in sorted(calls.items()))
    return {call: rank_list(ranks) for call, ranks in by_call.items()}


def _sizes(sizes: tuple[tuple[int, ...], ...]) -> str:
    return " ".join(str(list(size)) for size in sizes)


@rule("DD615", "link-between-two-ranks-hangs", Consequence.HANGS)
def pair(recording: Recording) -> Iterator[Draft]:
    """Two ranks both entered a transfer that never ended.

    Finds: Reports two running ranks that both entered the same send and receive and did not leave it in time. A link
        that carries less than about a megabit per second looks the same.
    Why: Neither process is at fault, but the connection between them is. One such pair hangs every collective.
    Remedy: On GPUs, test with NCCL_P2P_DISABLE=1, and repair ACS, the IOMMU or the link. On CPUs, check the firewall
        and the interface between the two.
    See: NCCL user guide, Troubleshooting: GPU Direct and PCI Access Control Services
    """
    explained = {stall.ranks for stall in failed_trials.stalls(recording)}  # the topology's own rule names them
    stuck: _Stuck = {}
    for case in cases(recording, "pair"):
        if failed_trials.explains(recording, case.trial):
            continue  # NCCL itself reports the cause
        stuck.update((pair, case) for pair in case.judgment.pairs if pair not in explained)
    common = _common_rank(recording, set(stuck))
    between = _nodes_between(recording, set(stuck))
    ends = recording.world.ranks_of(between[0]) if recording.world and between else range(0)
    if common is not None and _others_passed(recording, stuck, (common,)):
        yield _many_pairs(recording, common, stuck)
    elif between[1:] or (between and _others_passed(recording, stuck, ends)):
        yield _between_nodes(recording, between, stuck)
    elif len(stuck) > MOST_LINES or _is_every_pair(recording, set(stuck)):
        yield _everywhere(recording, stuck)
    else:
        for link, case in stuck.items():
            yield _one_pair(case, link, _of_the_others(recording, stuck))


#: Pairs of ranks, lower first, with the trial in which they hung.
_Stuck = dict[tuple[int, int], Case]


def _one_pair(case: Case, ends: tuple[int, int], others: str) -> Draft:
    recording, trial, judgment, step = case.recording, case.trial, case.judgment, case.step_words
    lower, higher = ends
    receivers = [rank for rank in ends if rank in judgment.waiting]
    within = f" within {trial.waited_s:.0f} s" if trial.waited_s else ""
    left = f"{rank_list(receivers)} did not leave it" if receivers else "neither left it"
    return likely(
        (pair_culprit(recording, lower, higher),),
        f"Link between {rank_at(recording, lower)} and {rank_at(recording, higher)} hangs: both entered {step}"
        f" and {left}{within}",
        (case.rank_evidence(case.of_rank(rank)) for rank in (lower, higher)),
        *link_remedies(recording, [ends], judgment.step),
        detail=f"Both processes run, so the link between them is faulty.{others}",
        reproduced_by=between(recording, ends),
    )


def _common_end(pairs: set[tuple[int, int]]) -> int | None:
    """Return the rank or node that all of at least two stuck pairs share, or None."""
    if len(pairs) < 2:
        return None
    shared = set.intersection(*(set(pair) for pair in pairs))
    return shared.pop() if len(shared) == 1 else None


def _common_rank(recording: Recording, pairs: set[tuple[int, int]]) -> int | None:
    """Return the rank that all stuck pairs share, or None if it is its node's only rank: the node is named then."""
    rank, world = _common_end(pairs), recording.world
    if rank is None or world is None or not all(is_across(recording, pair) for pair in pairs):
        return rank
    return rank if len(world.ranks_of(world.node_of(rank))) > 1 else None


def _others_passed(recording: Recording, stuck: _Stuck, suspects: Collection[int]) -> bool:
    """Return True if some pair without the suspects passed: two ranks that met, or finished, while the others hung.

    If none passed, all pairs may be bad, and there may not have been time to test the rest.
    """
    for case in stuck.values():
        through = [rank for rank in case.trial.evidence if rank.done and rank.rank not in suspects]
        across = len({rank.node for rank in through}) > 1 or not all(is_across(recording, pair) for pair in stuck)
        if len(through) > 1 and across:  # on two nodes, if only paths between nodes hang
            return True
    return any(not set(pair) & set(suspects) for pair in _passed(recording, stuck))


def _passed(recording: Recording, stuck: _Stuck) -> set[tuple[int, int]]:
    """Return the pairs, lower rank first, that completed their exchange in some trial."""
    passed = {(rank.rank or 0, pair.peer) for rank in recording.facts(P2pFact) for pair in rank.fact.pairs}
    for case in stuck.values():
        for rank in case.trial.evidence:
            steps = [step for step in rank.steps if step.left_at is not None]
            passed |= {(rank.rank, peer) for step in steps for peer in step.peers}
    return {(min(pair), max(pair)) for pair in passed} - stuck.keys()


def _of_the_others(recording: Recording, stuck: _Stuck) -> str:
    """Return the sentence about the pairs that are not stuck; empty if there are none."""
    ranks = recording.world.world_size if recording.world else 0
    pairs = ranks * (ranks - 1) // 2
    if pairs <= len(stuck):
        return ""
    tested = len(_passed(recording, stuck)) + len(stuck) >= pairs
    return " All other pairs work." if tested else " Not all other pairs were tested."


def _nodes_between(recording: Recording, pairs: set[tuple[int, int]]) -> tuple[int, ...]:
    """Return the node that all stuck pairs share, or the two nodes that all of them connect."""
    world = recording.world
    if world is None or len(pairs) < 2 or not all(is_across(recording, pair) for pair in pairs):
        return ()
    nodes = {(world.node_of(lower), world.node_of(higher)) for lower, higher in pairs}
    if len(nodes) == 1:
        return nodes.pop()
    common = _common_end(nodes)
    return () if common is None else (common,)


def _many_pairs(recording: Recording, common: int, stuck: _Stuck) -> Draft:
    others = sorted(rank for pair in stuck for rank in pair if rank != common)
    case = next(iter(stuck.values()))
    return likely(
        (rank_culprit(recording, common),),
        f"{names(recording, (common,))} cannot exchange data with {ranks_at(recording, others)}:"
        " each transfer hangs at both ends",
        case.rank_evidence(case.of_rank(common)),
        *link_remedies(recording, stuck),
        detail=f"{len(stuck)} stuck pairs share this rank, and pairs without it work.",
        reproduced_by=between(recording, _shown(recording, stuck), stuck),
    )


def _between_nodes(recording: Recording, nodes: tuple[int, ...], stuck: _Stuck) -> Draft:
    hosts = [host(recording, node) for node in nodes]
    where = f"{hosts[0]} and {hosts[1]}" if hosts[1:] else f"{hosts[0]} and the other nodes"
    return likely(
        (node_pair(recording, *nodes) if hosts[1:] else node_culprit(recording, *nodes),),
        f"Links between {where} hang: {len(stuck)} pairs of ranks are stuck in a transfer",
        _pair_lines(recording, stuck),
        *link_remedies(recording, stuck),
        detail="All processes run and other pairs of ranks work, so the network path is faulty.",
        reproduced_by=between(recording, next(iter(stuck)), stuck),
    )


def _is_every_pair(recording: Recording, pairs: set[tuple[int, int]]) -> bool:
    """Return True if all pairs of a world of three or more ranks hang: the cause is something they share."""
    ranks = recording.world.world_size if recording.world else 0
    return ranks > 2 and len(pairs) == ranks * (ranks - 1) // 2


def _everywhere(recording: Recording, stuck: _Stuck) -> Draft:
    title = f"{len(stuck)} pairs of ranks are stuck in a transfer"
    detail = "All processes run. The pairs share no rank and no node, so the cause is unknown."
    if recording.world and _is_every_pair(recording, set(stuck)):
        title = f"No two of the {recording.world.world_size} ranks exchange data: {title}"
        detail = "All processes run, so a link or network that they all share is faulty."
    return likely(
        NOBODY,
        title,
        _pair_lines(recording, stuck),
        *link_remedies(recording, stuck),
        detail=detail,
        reproduced_by=between(recording, _shown(recording, stuck), stuck),
    )


def _shown(recording: Recording, stuck: _Stuck) -> tuple[int, int]:
    """Return the pair to test fixes on. A pair within a node is preferred, because settings apply to these."""
    return next((pair for pair in stuck if not is_across(recording, pair)), next(iter(stuck)))


def _pair_lines(recording: Recording, stuck: _Stuck) -> tuple[Evidence, ...]:
    lines = [
        (case.check, f"{rank_at(recording, lower)} and {rank_at(recording, higher)}")
        for (lower, higher), case in list(stuck.items())[:MOST_LINES]
    ]
    left = len(stuck) - len(lines)
    more = [(lines[0][0], f"and {left} more pairs")] if left else []
    return tuple(Evidence(check=check, text=text) for check, text in (*lines, *more))
