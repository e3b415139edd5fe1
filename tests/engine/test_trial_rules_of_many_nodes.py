"""Trials of hundreds of nodes: one short finding for all suspects. Recordings test trials of few nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_doctor.engine.hang.rules import hangs, slowness
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import RankEvidence, Step
from tests.readings import only, trial_of, uneven_world


def _step(seq: int = 3, *, entered: float = 1.0, left: float | None = None) -> Step:
    call = Step(check="allreduce", name="all_reduce", seq=seq, detail="float32 [8]", where="a.py:1")
    return call.model_copy(update={"entered_at": entered, "left_at": left})


def _run(nodes: int, steps: Mapping[int, Sequence[Step]], **fields: Any) -> Recording:
    """A trial of the 8 ranks of each node."""
    world = uneven_world([8] * nodes, "gloo")
    evidence = tuple(
        RankEvidence(rank=rank, node=world.node_of(rank), began=True, state="S", steps=tuple(steps[rank]))
        for rank in range(world.world_size)
    )
    return Recording(world=world, trials=(trial_of(*evidence, **{"backend": "gloo", **fields}),))


def test_thousands_of_suspects_are_counted_and_a_few_shown():
    steps = {rank: [_step(2 if rank % 2 else 3, left=1.1 if rank % 2 else None)] for rank in range(8 * 512)}

    found = only(hangs.never_entered.apply(_run(512, steps)))

    assert len(found.title) < 400
    assert len(found.evidence) < 12
    assert len(found.culprits) == 2048


def _walk(late: float) -> list[Step]:
    """Return three all-reduces; the rank lost time before the second."""
    first, second, third = (_step(seq, entered=seq, left=seq) for seq in (1, 2, 3))
    return [first, second.model_copy(update={"entered_at": 2 + late, "left_at": 6.01}), third]


def test_late_ranks_on_many_nodes_are_one_finding():
    steps = {rank: _walk(late=4.0 if rank % 8 == 0 else 0.0) for rank in range(512)}

    found = only(slowness.late.apply(_run(64, steps, outcome="finished", judged_check=None)))

    assert len(found.culprits) == 64
    assert len(found.title) < 300
