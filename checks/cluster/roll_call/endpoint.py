"""What the findings about the endpoint share: the nodes before one obstacle, the culprit, the evidence."""

from ddp_doctor.checks.cluster.roll_call.obstacles import Obstacle, obstacle_of
from ddp_doctor.checks.cluster.roll_call.wording import Group, endpoint, reader
from ddp_doctor.facts.cluster import RollCallFact
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.nodes import by_cause


def facing(recording: Recording, *obstacles: Obstacle) -> list[Group]:
    """The nodes before one of these obstacles, as groups that share it and the endpoint."""

    def cause(fact: RollCallFact) -> tuple[str, str] | None:
        obstacle = obstacle_of(recording, fact)
        return (obstacle, endpoint(fact)) if obstacle in obstacles else None

    return list(by_cause(recording.facts(RollCallFact), cause).values())


def head(fact: RollCallFact) -> Culprit:
    """The host that the endpoint names."""
    return Culprit(kind="node", node=fact.endpoint_host or fact.hostname, node_rank=0)


def draft(
    group: Group,
    title: str,
    detail: str,
    culprits: tuple[Culprit, ...],
    *remedies: Remedy,
    expected: str = "the endpoint answers within the time for the roll call",
    confidence: Confidence = Confidence.PROVED,
) -> Draft:
    """A finding that rests on what each node of the group saw of the endpoint."""
    return finding(
        culprits, title, _evidence(group, expected), *remedies, confidence=confidence, detail=detail
    )


def _evidence(group: Group, expected: str) -> tuple[Evidence, ...]:
    return tuple(_of_one(one.fact, expected) for one in group)


def _of_one(fact: RollCallFact, expected: str) -> Evidence:
    attempts = [f"{one.address}: {one.error or one.outcome}" for one in fact.attempts]
    if not attempts:
        attempts = [fact.error or f"{fact.endpoint_host} is {', '.join(fact.endpoint_addresses)}"]
    return Evidence(
        text=f"on {reader(fact).node}, {'; '.join(attempts)}; tried for",
        value=round(fact.waited_s, 1),
        unit="s",
        expected_from=expected,
    )
