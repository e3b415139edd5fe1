"""Simultaneous trials of several groups of nodes by the running agents; groups have no node in common.

The head orders all of them. Each node takes part in the trial of its group, and no rank is judged by it.
"""

import time
from collections.abc import Sequence

from ddp_doctor.agents import messages
from ddp_doctor.agents.agent_group import AgentGroup
from ddp_doctor.agents.remote_ranks import GroupRanks, merged
from ddp_doctor.engine.node_run.agent import Agent
from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.base import Json
from ddp_doctor.model.finding import Reproducer
from ddp_doctor.model.recording import World
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks.environment import Refused
from ddp_doctor.ranks.node_ranks import NodeRanks
from ddp_doctor.ranks.trial import TrialResult
from ddp_doctor.wording.nodes import name_list

Groups = Sequence[tuple[int, ...]]


def run_groups(agent: Agent, groups: Groups, reproducer: Reproducer, limit_s: float) -> list[TrialResult]:
    """Run the trial of each group, by node ranks, on the head. Lost nodes are in the results and in ``group.lost``.

    Raises Left and StoreLost after it has ended the trials of all groups.
    """
    group, world = agent.group, agent.world
    assert group is not None
    first = agent.trying(reproducer, (), limit_s)
    agent.attempts += len(groups)
    records = [_record(first, groups, index, world) for index in range(len(groups))]
    index_of = {node: index for index, nodes in enumerate(groups) for node in nodes}

    def read(value: Json, node: int, world: World) -> TrialResult:
        return messages.trial_part(value, node, world, records[index_of[node]].trial)

    ends = time.monotonic() + (1.0 + deadlines.MOST_QUEUED) * (first.limit_s or 0.0)
    group.order({"do": "groups", "record": first.model_dump(mode="json"), "groups": groups})
    try:
        mine = run_own_group(agent.node_ranks, group, first, groups)
        left_s = max(ends - time.monotonic(), 0.0) + deadlines.HAND_IN_S
        parts = group.gather(f"result/{first.trial}", left_s, read, of=index_of)
        group.require_store()
        group.require_presence()
    except BaseException:
        for record in records:
            group.client.put_first(f"stop/{record.trial}", "interrupted")
        raise
    if mine is not None:
        parts[group.my_rank] = mine
    group.lost.update(group.silent())
    return [
        _whole(record, [parts.get(node) for node in nodes], nodes, group.lost, world)
        for record, nodes in zip(records, groups, strict=True)
    ]


def run_own_group(node_ranks: NodeRanks, group: AgentGroup, first: TrialRecord, groups: Groups) -> TrialResult | None:
    """Run this node's part of the trial of its group, or return None if it is in no group. Raises Refused."""
    world, nodes = node_ranks.run.world, [node for each in groups for node in each]
    if first.reproducer is None or len(set(nodes)) < len(nodes) or not set(nodes) <= set(range(world.nnodes)):
        raise Refused(f"its groups do not match the nodes of this run: {str(groups)[:80]}")
    own = next((index for index, each in enumerate(groups) if node_ranks.run.node in each), None)
    if own is None:
        return None
    record = _record(first, groups, own, world)
    return node_ranks.run_trial(record, (), (), GroupRanks(group, record.trial, groups[own], record.limit_s or 0.0))


def _record(first: TrialRecord, groups: Groups, index: int, world: World) -> TrialRecord:
    """Return the trial of one of the groups: their numbers are consecutive."""
    ranks = sorted(rank for node in groups[index] for rank in world.ranks_of(node))
    number = int(first.trial.removeprefix("t")) + index
    return first.model_copy(update={"trial": f"t{number}", "ranks": tuple(ranks)})


def _whole(
    record: TrialRecord, parts: Sequence[TrialResult | None], nodes: Sequence[int], lost: set[int], world: World
) -> TrialResult:
    """Return one result from the parts of the nodes. It is inconclusive if a node that still responds sent none."""
    there = [part for part in parts if part is not None]
    gone = tuple(node for node, part in zip(nodes, parts, strict=True) if part is None and node in lost)
    result = merged(there, ()) if there else TrialResult(record=record, readings=())
    if not gone and len(there) < len(nodes):
        silent = [world.hostname(node) for node, part in zip(nodes, parts, strict=True) if part is None]
        return result.unjudged(f"{name_list(silent)} handed nothing in")
    return result.model_copy(update={"record": result.record.model_copy(update={"lost_nodes": gone})})
