"""Isolation on the head node of a run: tests groups until the bad nodes are known or time is up.

The next groups and the result are computed only from the tests (search.py, views/isolation.py).
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

#: Expected duration of a trial before any group has passed, on a machine with ten ranks per core.
_BUSY_S = 3.0


def isolate(agent: Agent, leaf_of: Mapping[int, str]) -> None:
    """Test groups of the agent's nodes, round after round; ``leaf_of`` is by node rank, if known.

    The result is added to the run's readings, however it ends. Errors that end the run are raised; a lost node does not
    end it.
    """
    tests, stopped = list[GroupTest](), "it was broken off"
    try:
        stopped = _isolate(agent, leaf_of, tests)
    finally:
        fact = IsolationFact(tests=tuple(tests), stopped=stopped)
        agent.partial.readings.append(Reading(check=ISOLATION, status=Status.COLLECTED, fact=fact.recorded()))


def _isolate(agent: Agent, leaf_of: Mapping[int, str], tests: list[GroupTest]) -> str:
    """Fill ``tests``; return why it ended before all was settled, or an empty string."""
    run, world, group = agent.node_ranks.run, agent.world, agent.group
    assert group is not None
    began = time.monotonic()
    reproducer = Reproducer(kind="all_reduces", size_bytes=trials.GROUP_BYTES[world.backend])
    while True:
        heard = [node for node in range(world.nnodes) if node not in group.lost]
        groups = next_round(tests, heard, leaf_of, run.options.repeat)
        if not groups:
            return ""
        if tests and time.monotonic() >= run.until:  # one round runs in any case
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
    """Return the groups as text, such as ``3 groups of 2 nodes``."""
    sizes = sorted({len(nodes) for nodes in groups})
    of = f"{sizes[0]} to {sizes[-1]} nodes" if len(sizes) > 1 else f"{sizes[0]} node{'s' if sizes[0] > 1 else ''}"
    return f"{len(groups)} group{'s' if len(groups) > 1 else ''} of {of}"


def limit_s(tests: Sequence[GroupTest], world: World) -> float:
    """Return the time limit of a trial; longer if the passing trials took long, because their machine may be busy."""
    passed = [test.duration_s for test in tests if test.outcome == "passed"]
    usual_s = trials.NCCL_TRIAL_S if world.backend == "nccl" else trials.TRIAL_S
    return min(max(usual_s, trials.HUNG_RATIO * max(passed, default=_BUSY_S)), trials.NCCL_TRIAL_S)
