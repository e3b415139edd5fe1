"""How far apart the nodes' counts of a trial's seconds are, from the steps that their ranks took together.

Each agent counts from the moment when it began the trial, so equal numbers from two nodes are not the same
moment. No rank leaves a collective before the last rank has entered it, so all leave it at about the same
moment, and the nodes' numbers of that moment give their distance. The hosts' clocks are not used.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median_low

from ddp_doctor.model.trial import Step, TrialRecord

#: Steps in which every rank waits for every other rank. DDP's construction is not one of them: the rank that
#: sends its broadcast leaves first.
_LEFT_TOGETHER = frozenset({"init_process_group", "all_reduce", "all_gather", "backward"})

#: Rank, node and step of all that met: equal numbers of one check.
Met = Mapping[tuple[str, int], list[tuple[int, int, Step]]]


@dataclass(frozen=True)
class Clock:
    """How far a node's count is ahead of the typical node's, in seconds, and how uncertain that is."""

    ahead_s: float
    uncertainty_s: float


def by_step(trial: TrialRecord) -> Met:
    """The ranks that took each step."""
    met: dict[tuple[str, int], list[tuple[int, int, Step]]] = {}
    for rank in trial.evidence:
        for step in rank.steps:
            met.setdefault((step.check, step.seq), []).append((rank.rank, rank.node, step))
    return met


def clocks(met: Met, nodes: Collection[int]) -> dict[int, Clock]:
    """The clocks of these nodes; empty where no step is known that all of them left together."""
    ahead: dict[int, list[float]] = {node: [] for node in nodes}
    for entered in met.values():
        left = _left(entered)
        if not left.keys() >= ahead.keys():
            continue
        typical = median_low(left[node] for node in nodes)
        for node in nodes:
            ahead[node].append(left[node] - typical)
    return {node: _clock(offsets) for node, offsets in ahead.items() if offsets}


def _left(entered: Collection[tuple[int, int, Step]]) -> dict[int, float]:
    """When each node left a step."""
    left: dict[int, list[float]] = {}
    for _, node, step in entered:
        if step.name in _LEFT_TOGETHER and step.left_at is not None:
            left.setdefault(node, []).append(step.left_at)
    return {node: median_low(times) for node, times in left.items()}


def _clock(offsets: Collection[float]) -> Clock:
    return Clock(median_low(offsets), (max(offsets) - min(offsets)) / 2)
