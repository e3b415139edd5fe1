"""Isolation on the head of a run: which groups are tested next, until it is settled who is to blame, or time is up.

What to test, and what follows from it, is worked out of the tests alone (search.py, views/isolation.py).
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddp_doctor.engine.isolation.group_tests import group_test
from ddp_doctor.engine.isolation.search import next_round
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.node_run.groups import Groups, run_groups
from ddp_doctor.facts.collectives import GroupTest, IsolationFact
from ddp_doctor.model.check import ISOLATION
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Reproducer
from ddp_doctor.settings import trials
from ddp_doctor.views.isolation import settle
from ddp_doctor.wording.nodes import name_list

#: Before any group has passed: what a trial that passes may take on a machine with ten ranks to a processor.
_BUSY_S = 3.0


@dataclass
class Isolation:
    """Tests groups of the agent's nodes; the run's readings have what came of it, however it ends."""

    agent: Agent
    leaf_of: Mapping[int, str]  # by node rank, where it is known
    tests: list[GroupTest] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)
    _rounds: int = 0

    def run(self) -> None:
        """Round after round. Raises what ends the run; a node that falls silent does not."""
        stopped = "it was broken off"
        try:
            while (groups := self._next()) and not (why := self._why_stop()):
                self._test(groups)
            stopped = why if groups else ""
        finally:
            fact = IsolationFact(tests=tuple(self.tests), stopped=stopped)
            reading = Reading(check=ISOLATION, status=Status.COLLECTED, fact=fact.recorded())
            self.agent.partial.readings.append(reading)

    @property
    def _nodes(self) -> tuple[int, ...]:
        """Those that are still heard."""
        assert self.agent.group is not None
        return tuple(node for node in range(self.agent.world.nnodes) if node not in self.agent.group.lost)

    def _next(self) -> Groups:
        return next_round(self.tests, self._nodes, self.leaf_of, self.agent.node_ranks.run.options.repeat)

    def _why_stop(self) -> str:
        if self.tests and time.monotonic() >= self.agent.node_ranks.run.until:  # whatever came before: one round
            return "the time budget was used up"
        return self.agent.node_ranks.lost_helper() or ""

    def _test(self, groups: Groups) -> None:
        run = self.agent.node_ranks.run
        run.progress(self._stands(groups))
        reproducer = Reproducer(kind="all_reduces", size_bytes=trials.GROUP_BYTES[run.world.backend])
        at_s = time.monotonic() - self._began
        results = run_groups(self.agent, groups, reproducer, self._limit_s())
        self.tests += [
            group_test(self._rounds, nodes, result, at_s) for nodes, result in zip(groups, results, strict=True)
        ]
        self._rounds += 1

    def _stands(self, groups: Groups) -> str:
        """``isolation: round 4, 3 groups of 2 nodes, suspected: node5``."""
        sizes = sorted({len(nodes) for nodes in groups})
        of = f"{sizes[0]} to {sizes[-1]} nodes" if len(sizes) > 1 else f"{sizes[0]} node{'s' if sizes[0] > 1 else ''}"
        found = settle(self.tests, self._nodes, self.leaf_of)
        names = [self.agent.world.hostname(node) for node in sorted(found.blamed)]
        names += [" with ".join(map(self.agent.world.hostname, pair)) for pair in found.open_pairs]
        suspected = f", suspected: {name_list(names)}" if names else ""
        many = f"{len(groups)} group{'s' if len(groups) > 1 else ''}"
        return f"{ISOLATION}: round {self._rounds + 1}, {many} of {of}{suspected}"

    def _limit_s(self) -> float:
        """What a trial may take, and more where those that passed took long: their machine may be busy."""
        passed = [test.duration_s for test in self.tests if test.outcome == "passed"]
        usual_s = trials.NCCL_TRIAL_S if self.agent.world.backend == "nccl" else trials.TRIAL_S
        return min(max(usual_s, trials.HUNG_RATIO * max(passed, default=_BUSY_S)), trials.NCCL_TRIAL_S)
