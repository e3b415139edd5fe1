"""The result of the judge of trials, and how it compares the places and clocks of ranks.

A *place* is the check's index in the trial and the number of the step in the check.

Each agent counts a trial's seconds from its own start of the trial, so equal numbers on two nodes are not the same
moment. No rank leaves a collective before the last rank has entered it, so all leave it at about the same moment, and
the difference of the nodes' numbers is their offset. The hosts' clocks are not used.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Literal

from ddp_doctor.engine.waits.standings import Call
from ddp_doctor.model.base import grouped
from ddp_doctor.model.trial import RankEvidence, Step, TrialRecord

Kind = Literal[
    "died",
    "died-everywhere",
    "raised",
    "raised-everywhere",
    "stopped",
    "uninterruptible",
    "never-began",
    "never-entered",
    "mismatch",
    "at-odds",
    "pair",
    "all-entered",
    "left-behind",
    "slow",
    "unsure",
]

Place = tuple[int, int]

#: Steps named after the call they make; a backward or a constructor makes calls of other names.
COLLECTIVES = frozenset(
    {"all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "gather"}
    | {"reduce", "reduce_scatter", "scatter"}
)
#: Steps in which each rank keeps only its own GPU busy, so that no rank waits: the steps of gpu_speed, and the steps of
#: a large model that ``fit --measure`` runs.
ALONE = frozenset({"matmul", "copy", "host_copy", "measured_step"})
#: Steps of user_model that are an entire step of the user's job, with collectives of fully_shard and user code.
STEPS_OF_A_JOB = frozenset({"sharded_step", "step_alone"})
#: The place of a rank that torch keeps in a collective; backward calls them from the autograd engine.
_TORCH_WAITS = re.compile(r"/torch/(distributed|nn/parallel|autograd)/")
#: Calls that no flight recorder records: creating a group, a barrier over the store.
_TORCH_MEETS = re.compile(r"/torch/distributed/distributed_c10d\.py")
#: Frames that query the control store (ranks/store.py; ranks/exchange.py in recordings of earlier releases).
_STORE_WAITS = re.compile(r"/ddp_doctor/ranks/(?:store|exchange)\.py")


@dataclass(frozen=True)
class Judgment:
    """The kind of failure and the ranks that caused it. ``step`` is the step where the other ranks wait."""

    kind: Kind
    suspects: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    step: Step | None = None
    pairs: tuple[tuple[int, int], ...] = ()  # links that a transfer did not get across
    flights: tuple[tuple[int, Call], ...] = ()  # only for a mismatch: the real call of each rank


def numbers(ranks: Sequence[RankEvidence]) -> tuple[int, ...]:
    """Return the numbers of these ranks."""
    return tuple(rank.rank for rank in ranks)


def where_it_waits(rank: RankEvidence) -> Literal["collective", "store", "outside", "unknown"]:
    """Return what a rank waits for in its step. In a collective or at the store, messages may have been lost."""
    stands_in = rank.stack[-1] if rank.stack else ""
    if _STORE_WAITS.search(stands_in):
        return "store"
    if not rank.flight and stands_in:
        step = rank.open_step
        waits = step is not None and step.name in COLLECTIVES  # for work that it queued: torch is not in its stack
        return "collective" if waits or _TORCH_WAITS.search(stands_in) else "outside"
    if not rank.flight:
        return "unknown"
    waits = rank.flight[-1].is_open or _TORCH_MEETS.search(stands_in) is not None
    return "collective" if waits else "outside"


def shared_step(ranks: Sequence[RankEvidence]) -> Step | None:
    """Return the step that most of these ranks are in."""
    steps = [step for rank in ranks if (step := rank.open_step) is not None]
    counted = Counter(step.key for step in steps)
    if not counted:
        return None
    key = counted.most_common(1)[0][0]
    return next(step for step in steps if step.key == key)


def place_of(step: Step, trial: TrialRecord) -> Place:
    """Return the place of a step in the trial; a check that the plan does not list comes last."""
    check, seq = step.key
    return (trial.checks.index(check) if check in trial.checks else len(trial.checks)), seq


def reached(rank: RankEvidence, trial: TrialRecord) -> Place:
    """Return the last place that a rank has entered; only the last steps are kept."""
    return max((place_of(step, trial) for step in rank.steps), default=(-1, 0))


#: Steps in which every rank waits for every other rank. DDP's construction is not included: the rank that sends its
#: broadcast leaves first.
_LEFT_TOGETHER = frozenset({"init_process_group", "all_reduce", "all_gather", "backward"})

#: The rank, node and step of all ranks in a step, by check and number of the step.
Met = Mapping[tuple[str, int], list[tuple[int, int, Step]]]


@dataclass(frozen=True)
class Clock:
    """The offset of a node's seconds from the typical node's, and its uncertainty."""

    ahead_s: float
    uncertainty_s: float


def by_step(trial: TrialRecord) -> Met:
    """Return the ranks that took each step."""
    return grouped(
        ((step.check, step.seq), (rank.rank, rank.node, step)) for rank in trial.evidence for step in rank.steps
    )


def clocks(met: Met, nodes: Collection[int]) -> dict[int, Clock]:
    """Return the clocks of these nodes; empty if there is no step that all of them left together."""
    ahead: dict[int, list[float]] = {node: [] for node in nodes}
    for entered in met.values():
        together = [(node, step) for _, node, step in entered if step.name in _LEFT_TOGETHER and not step.axis]
        times = grouped((node, step.left_at) for node, step in together if step.left_at is not None)
        left = {node: median_low(of_node) for node, of_node in times.items()}
        if not left.keys() >= ahead.keys():
            continue
        typical = median_low(left[node] for node in nodes)
        for node in nodes:
            ahead[node].append(left[node] - typical)
    return {
        node: Clock(median_low(offsets), (max(offsets) - min(offsets)) / 2)
        for node, offsets in ahead.items()
        if offsets
    }
