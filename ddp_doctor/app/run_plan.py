"""``ddp-doctor run --plan``: what a run would do, computed from its options without starting it."""

from collections.abc import Iterator, Sequence
from typing import Literal

from ddp_doctor import __version__
from ddp_doctor.app.running import require_usable
from ddp_doctor.checks import checks_of
from ddp_doctor.engine.isolation.search import next_round
from ddp_doctor.engine.plan import Plan, make_plan
from ddp_doctor.facts.collectives import GroupTest
from ddp_doctor.model.check import BASELINE, ISOLATION, REPEATS
from ddp_doctor.model.choices import Command, Where
from ddp_doctor.model.recording import Options
from ddp_doctor.model.report import Tool
from ddp_doctor.model.run_plan import PlannedNode, PlannedStep, RunPlan

#: A trial of fresh ranks that meet and reduce: on two to eight hosts with CPUs it took half a second to one.
_TRIAL_S = 1.0
#: With this many nodes or more, all are tested in the same number of rounds; counting them for 16,384 would take half a
#: minute.
_ENOUGH_NODES = 256


def run_plan(
    options: Options, hosts: Sequence[str | None], launcher: str, nproc_per_node: int | None, *, is_here: bool
) -> RunPlan:
    """Return the plan for nodes of these names, None for unknown ones; ``is_here``: for only this node.

    Raises UsageError.
    """
    plan = make_plan(options, checks_of(Command.RUN, has_model=bool(options.model)), len(hosts))
    if is_here:
        require_usable(options, plan)
    leaves = options.leaves_of([host or "" for host in hosts])
    steps = tuple(_steps(plan, options, leaves))
    repeats_s = sum(step.seconds for step in steps if REPEATS in step.checks)
    planned = {check.id for check in plan.checks} | ({BASELINE} if options.baseline else set())
    return RunPlan(
        tool=Tool(version=__version__),
        launcher=launcher,
        nodes=tuple(
            PlannedNode(node_rank=rank, hostname=host, leaf=leaf or None)
            for rank, (host, leaf) in enumerate(zip(hosts, leaves, strict=True))
        ),
        ranks_per_node=nproc_per_node,
        steps=steps,
        seconds=round(sum(step.seconds for step in steps), 2),
        node_minutes=round(sum(step.node_minutes for step in steps), 2),
        most_seconds=round(options.budget_s + repeats_s, 2),
        not_run=tuple(each for each in plan.not_run if each.check not in planned),
    )


def _steps(plan: Plan, options: Options, leaves: Sequence[str]) -> Iterator[PlannedStep]:
    """Yield the steps in the order of engine/node_run."""
    alone = [check for check in plan.checks if check.environment]
    for where, checks in (
        (Where.NODE, plan.at(Where.NODE)),
        (Where.NODES, plan.at(Where.NODES)),
        (Where.GROUPS, [check for check in plan.checks if check.id == ISOLATION]),
        (Where.LAUNCHER, plan.at(Where.LAUNCHER)),
        (Where.RANK, [check for check in plan.at(Where.RANK) if check not in alone]),
        (Where.GROUPS, [check for check in plan.checks if check.id == REPEATS]),
        (Where.AFTERWARDS, plan.at(Where.AFTERWARDS)),
        (Where.RANK, alone),
    ):
        if not checks:
            continue
        costs, rounds, with_bad = [check.cost_s for check in checks], 1, None
        seconds = max(costs) if where is Where.NODE else sum(costs)
        if checks[0].id == REPEATS:
            often = options.repeat if options.repeat > 1 and not options.isolate else 0
            rounds = 1 if options.soak_s else often
            seconds = min(options.soak_s or float("inf"), often * _TRIAL_S or float("inf"))
        elif where is Where.GROUPS:
            rounds, with_bad = (_rounds(leaves, options.repeat, bad) for bad in (None, 0))
            seconds = rounds * _TRIAL_S
        yield PlannedStep(
            where=where,
            checks=tuple(check.id for check in checks),
            seconds=round(seconds, 2),
            node_minutes=round(seconds * len(leaves) / 60, 2),
            rounds=rounds,
            rounds_with_one_bad=with_bad,
        )


def _rounds(leaves: Sequence[str], repeat: int, bad: int | None) -> int:
    """Count the rounds of an isolation where only groups of the node ``bad`` with other nodes fail."""
    of_node = dict(enumerate(leaves[:_ENOUGH_NODES]))
    leaf_of = {node: leaf for node, leaf in of_node.items() if leaf}
    tests, rounds = list[GroupTest](), 0
    while groups := next_round(tests, tuple(of_node), leaf_of, repeat):
        for group in groups:
            outcome: Literal["hung", "passed"] = "hung" if bad in group and len(group) > 1 else "passed"
            tests.append(GroupTest(round=rounds, nodes=group, outcome=outcome, bytes_per_s=1.0))
        rounds += 1
    return rounds
