"""Isolation on the head of a run: which groups are tested next, until it is settled who is to blame, or time is up.

What to test, and what follows from it, is worked out of the tests alone (search.py, views/isolation.py).
"""

import time
from collections.abc import Mapping, Sequence

from ddp_doctor.engine.isolation.group_tests import group_test
from ddp_doctor.engine.isolation.search import next_round
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.engine.node_run.groups import Groups, run_groups
from ddp_doctor.facts.collectives import GroupTest, IsolationFact
from ddp_doctor.model.check import ISOLATION
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Reproducer
from ddp_doctor.model.recording import World
from ddp_doctor.settings import trials
from ddp_doctor.views.isolation import settle
from ddp_doctor.wording.nodes import name_list

#: Before any group has passed: what a trial that passes may take on a machine with ten ranks to a processor.
_BUSY_S = 3.0


def isolate(agent: Agent, leaf_of: Mapping[int, str]) -> None:
    """Test groups of the agent's nodes, round after round; ``leaf_of`` is by node rank, where it is known.

    The run's readings have what came of it, however it ends. Raises what ends the run; a node that falls silent does
    not.
    """
    tests, stopped = list[GroupTest](), "it was broken off"
    try:
        stopped = _isolate(agent, leaf_of, tests)
    finally:
        fact = IsolationFact(tests=tuple(tests), stopped=stopped)
        agent.partial.readings.append(Reading(check=ISOLATION, status=Status.COLLECTED, fact=fact.recorded()))


def _isolate(agent: Agent, leaf_of: Mapping[int, str], tests: list[GroupTest]) -> str:
    """Fill ``tests``; why it ended before all was settled, empty where it did not."""
    run, world, group = agent.node_ranks.run, agent.world, agent.group
    assert group is not None
    began = time.monotonic()
    reproducer = Reproducer(kind="all_reduces", size_bytes=trials.GROUP_BYTES[world.backend])
    while True:
        heard = [node for node in range(world.nnodes) if node not in group.lost]
        groups = next_round(tests, heard, leaf_of, run.options.repeat)
        if not groups:
            return ""
        if tests and time.monotonic() >= run.until:  # whatever came before: one round
            return "the time budget was used up"
        if (lost := agent.node_ranks.lost_helper()) is not None:
            return lost
        found = settle(tests, heard, leaf_of)
        names = [world.hostname(node) for node in sorted(found.blamed)]
        names += [" with ".join(map(world.hostname, pair)) for pair in found.open_pairs]
        suspected = f", suspected: {name_list(names)}" if names else ""
        rounds = 1 + tests[-1].round if tests else 0
        run.progress(f"{ISOLATION}: round {rounds + 1}, {_in_words(groups)}{suspected}")
        at_s = time.monotonic() - began
        results = run_groups(agent, groups, reproducer, limit_s(tests, world))
        tests += [group_test(rounds, nodes, result, at_s) for nodes, result in zip(groups, results, strict=True)]


def _in_words(groups: Groups) -> str:
    """``3 groups of 2 nodes``."""
    sizes = sorted({len(nodes) for nodes in groups})
    of = f"{sizes[0]} to {sizes[-1]} nodes" if len(sizes) > 1 else f"{sizes[0]} node{'s' if sizes[0] > 1 else ''}"
    return f"{len(groups)} group{'s' if len(groups) > 1 else ''} of {of}"


def limit_s(tests: Sequence[GroupTest], world: World) -> float:
    """What a trial may take, and more where those that passed took long: their machine may be busy."""
    passed = [test.duration_s for test in tests if test.outcome == "passed"]
    usual_s = trials.NCCL_TRIAL_S if world.backend == "nccl" else trials.TRIAL_S
    return min(max(usual_s, trials.HUNG_RATIO * max(passed, default=_BUSY_S)), trials.NCCL_TRIAL_S)
