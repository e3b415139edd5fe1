"""Runs of which some nodes, or the head itself, could not take part."""

from collections.abc import Mapping, Sequence

from ddp_doctor.app.outcome import Outcome, blank, judge
from ddp_doctor.engine.plan import Plan
from ddp_doctor.facts.cluster.roll_call import NotStarted, Present, RollCallFact
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options, Recording, World
from ddp_doctor.starters.detect import Launcher


def not_started(
    options: Options,
    hosts: Sequence[str],
    endpoint: tuple[str, int],
    launcher: Launcher,
    reasons: Mapping[int, str],
) -> Outcome:
    """A run whose head could not be started, on the host where it was typed; ``reasons`` by node rank."""
    fact = RollCallFact(
        role="head",
        outcome="missing",
        endpoint_host=endpoint[0],
        endpoint_port=endpoint[1],
        nnodes=len(hosts),
        hostname=hosts[0],
        present=tuple(
            Present(hostname=host, nnodes=len(hosts))
            for rank, host in enumerate(hosts)
            if rank not in reasons
        ),
        missing=tuple(sorted(reasons)),
        not_started=tuple(
            NotStarted(hostname=hosts[rank], reason=why) for rank, why in sorted(reasons.items())
        ),
    )
    world = World(nnodes=len(hosts), world_size=len(hosts), launcher=launcher, expected_hosts=tuple(hosts))
    reading = Reading(check="roll_call", status=Status.COLLECTED, fact=fact.recorded())
    recording = blank(options, Plan(()))
    return judge(recording.model_copy(update={"world": world, "readings": (reading,)}))


def judge_with_absent(head: Recording, absent: Sequence[Recording]) -> Outcome:
    """Judge the head's recording with those of nodes that could not come to its roll call and say why themselves."""
    world = head.world or World()
    known = {node.hostname for node in world.nodes}
    nodes = [
        node
        for recording in absent
        if recording.world
        for node in recording.world.nodes
        if node.hostname not in known
    ]
    readings = [
        reading for recording in absent for reading in recording.readings if reading.check == "roll_call"
    ]
    return judge(
        head.model_copy(
            update={
                "world": world.model_copy(update={"nodes": (*world.nodes, *nodes)}),
                "readings": (*head.readings, *readings),
            }
        )
    )
