"""``ddp-doctor run --plan``: what a run would do, worked out of its options; nothing is started."""

from collections.abc import Iterator, Sequence
from math import ceil, log2

from ddp_doctor import __version__
from ddp_doctor.app.running import require_usable
from ddp_doctor.checks import checks_of
from ddp_doctor.engine.plan import Plan, make_plan
from ddp_doctor.model.check import BASELINE, Check
from ddp_doctor.model.choices import Command, Where
from ddp_doctor.model.recording import Options
from ddp_doctor.model.report import Tool
from ddp_doctor.model.run_plan import PlannedNode, PlannedStep, RunPlan


def run_plan(
    options: Options, hosts: Sequence[str | None], launcher: str, nproc_per_node: int | None, *, is_here: bool
) -> RunPlan:
    """The plan for nodes of these names, None where one is not known; ``is_here``: for this one alone.

    Raises UsageError.
    """
    plan = make_plan(options, checks_of(Command.RUN), len(hosts))
    if is_here:
        require_usable(options, plan)
    leaves = options.leaves_of([host or "" for host in hosts])
    steps = tuple(_steps(plan, options, leaves))
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
        budget_s=options.budget_s,
        not_run=tuple(each for each in plan.not_run if each.check not in planned),
    )


def _steps(plan: Plan, options: Options, leaves: Sequence[str]) -> Iterator[PlannedStep]:
    """In the order of engine/node_run."""
    alone = [check for check in plan.checks if check.environment]
    isolation, repeats = (
        [check for check in plan.at(Where.GROUPS) if (check.id == "isolation") is wanted] for wanted in (True, False)
    )

    def step(where: Where, checks: Sequence[Check], seconds: float, rounds: int = 1, most: int = 1) -> PlannedStep:
        return PlannedStep(
            where=where,
            checks=tuple(check.id for check in checks),
            seconds=round(seconds, 2),
            node_minutes=round(seconds * len(leaves) / 60, 2),
            rounds=rounds,
            most_rounds=max(rounds, most),
        )

    if at_once := plan.at(Where.NODE):
        yield step(Where.NODE, at_once, max(check.cost_s for check in at_once))
    for where, checks in (
        (Where.NODES, plan.at(Where.NODES)),
        (Where.GROUPS, isolation),
        (Where.LAUNCHER, plan.at(Where.LAUNCHER)),
        (Where.RANK, [check for check in plan.at(Where.RANK) if check not in alone]),
        (Where.GROUPS, repeats),
        (Where.AFTERWARDS, plan.at(Where.AFTERWARDS)),
        (Where.RANK, alone),
    ):
        if not checks:
            continue
        cost_s, rounds, most = sum(check.cost_s for check in checks), 1, 1
        if checks is isolation:
            rounds = 2 * options.repeat  # each node alone, then all of them
            most = rounds + ceil(log2(len(leaves))) * options.repeat
        elif checks is repeats and options.soak_s:
            rounds = max(int(options.soak_s / cost_s), 1)
        elif checks is repeats:
            rounds = options.repeat
        yield step(where, checks, cost_s * rounds, rounds, most)
