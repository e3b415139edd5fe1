"""The plan of a run as a table on a screen.

Plan (nothing was started): 2 nodes over ssh: node1, node2. Ranks: one on each GPU, or 2 on CPUs.
  s    node-  where                         what
     minutes
0.5     0.02  each node, in parallel        env_vars, software, nccl, host, gpus
0.6     0.02  each node, after check-in     roll_call, consistency, connectivity
3.1     0.10  all ranks                     process_group, allreduce, gradient_sync
4.2     0.14  total                         expected; no check starts after 60 s (2.00 node-minutes)
  not included: waiting for the nodes, importing torch, and testing fixes
  skipped (needs a model of yours: --model): user_model, compile
"""

from collections.abc import Iterator

from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Where
from ddp_doctor.model.run_plan import PlannedStep, RunPlan
from ddp_doctor.render.layout import Table, width_of
from ddp_doctor.render.screen import Console
from ddp_doctor.wording.nodes import first_names

_PLACES = {
    Where.NODE: "each node, in parallel",
    Where.NODES: "each node, after check-in",
    Where.GROUPS: "groups of nodes",
    Where.LAUNCHER: "ranks started by torchrun",
    Where.RANK: "all ranks",
    Where.AFTERWARDS: "each node, at the end",
}
_STARTED_BY = {"slurm": " by srun", "ssh": " over ssh", "torchrun": " by torchrun", "mpi": " by mpirun"}
#: Maximum number of nodes or checks in a line; the JSON has all.
_MOST_NAMES = 16


def show(plan: RunPlan, out: Console) -> None:
    """Print the plan."""
    rows = [(f"{step.seconds:.1f}", f"{step.node_minutes:.2f}", _place(step), _what(step)) for step in plan.steps]
    most = plan.most_seconds * len(plan.nodes) / 60
    total = f"expected; no check starts after {plan.most_seconds:g} s ({most:.2f} node-minutes)"
    rows.append((f"{plan.seconds:.1f}", f"{plan.node_minutes:.2f}", "total", total))
    titles, caption = ("s", "node-\nminutes", "where", "what"), f"Plan (nothing was started): {_nodes(plan)}"
    for line in Table(titles, rows, range(2), caption, tuple(_notes(plan))).lines(width_of(out)):
        out.print(line)


def _place(step: PlannedStep) -> str:
    repeats = step.where is Where.GROUPS and not step.rounds_with_one_bad
    return "all ranks, repeatedly" if repeats else _PLACES[step.where]


def _what(step: PlannedStep) -> str:
    names = ", ".join(step.checks)
    if step.rounds_with_one_bad:
        return f"{names}: {step.rounds} rounds if all pass, about {step.rounds_with_one_bad} with one bad node"
    return f"{names}: {step.rounds} times" if step.rounds > 1 else names


def _nodes(plan: RunPlan) -> str:
    count = len(plan.nodes)
    known = [node.hostname for node in plan.nodes if node.hostname]
    nodes = f"{count} node{'s' * (count > 1)}{_STARTED_BY.get(plan.launcher, '')}"
    names = f": {first_names(known, _MOST_NAMES)}" if known else " (names unknown here)"
    ranks = f"{plan.ranks_per_node} on each" if plan.ranks_per_node else "one on each GPU, or 2 on CPUs"
    return f"{nodes}{names}. Ranks: {ranks}."


def _notes(plan: RunPlan) -> Iterator[str]:
    for leaf, hosts in grouped((node.leaf, node.hostname or "") for node in plan.nodes if node.leaf).items():
        yield f"on {leaf}: {first_names(hosts, _MOST_NAMES)}"
    waiting = "waiting for the nodes, " * (len(plan.nodes) > 1)
    yield f"not included: {waiting}importing torch, and testing fixes"
    for reason, checks in grouped((left_out.reason, left_out.check) for left_out in plan.not_run).items():
        yield f"skipped ({reason}): {first_names(checks, _MOST_NAMES)}"
