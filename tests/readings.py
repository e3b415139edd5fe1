"""Readings made of facts by hand, as tests of rules need them, and what the rules of a check find in a recording."""

from collections.abc import Iterable, Sequence
from typing import Any

from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.model.trial import RankEvidence, TrialRecord


def collected(check: str, fact: Fact, node: int = 0, rank: int | None = None) -> Reading:
    return Reading(check=check, status=Status.COLLECTED, node=node, rank=rank, fact=fact.recorded())


def of_nodes(check: str, facts: Iterable[Fact]) -> tuple[Reading, ...]:
    return tuple(collected(check, fact, node) for node, fact in enumerate(facts))


def of_ranks(check: str, facts: Iterable[Fact]) -> tuple[Reading, ...]:
    return tuple(collected(check, fact, rank=rank) for rank, fact in enumerate(facts))


def numbered_nodes(count: int) -> tuple[Node, ...]:
    return tuple(Node(node_rank=number, hostname=f"node{number}") for number in range(count))


def plain_world(nodes: int, nproc: int = 1, backend: str = "gloo") -> World:
    size = nodes * nproc
    names = numbered_nodes(nodes)
    return World(nnodes=nodes, nproc_per_node=nproc, world_size=size, backend=backend, nodes=names)


def uneven_world(counts: Sequence[int], backend: str = "gloo") -> World:
    nodes = tuple(Node(node_rank=node, hostname=f"node{node}", nproc=count) for node, count in enumerate(counts))
    size = sum(counts)
    return World(nnodes=len(counts), nproc_per_node=counts[0], world_size=size, backend=backend, nodes=nodes)


def trial_of(*evidence: RankEvidence, **fields: Any) -> TrialRecord:
    """Return a trial of these ranks that made no more progress, unless ``fields`` specify otherwise."""
    usual: dict[str, Any] = {"trial": "t", "outcome": "stuck", "judged_check": "allreduce"}
    usual |= {"ranks": tuple(one.rank for one in evidence), "checks": ("process_group", "allreduce", "p2p")}
    return TrialRecord(evidence=evidence, **{**usual, **fields})


def replayed(recording: Recording) -> Recording:
    """Return the recording converted to JSON and back, as in a replay."""
    return Recording.model_validate_json(recording.model_dump_json())


def findings_of(check: Check, recording: Recording) -> list[Finding]:
    return [finding for rule in check.rules for finding in rule.apply(recording)]


def only(findings: Iterable[Finding]) -> Finding:
    found = list(findings)
    assert len(found) == 1, found
    return found[0]


def finding_of(check: Check, recording: Recording) -> Finding:
    return only(findings_of(check, recording))
