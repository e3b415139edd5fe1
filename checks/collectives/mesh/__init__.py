"""Mesh: whether the groups of a job's mesh are the same on all ranks, correct, and on suitable links.

Raw input: none; it is the mesh of each rank, and the results of each axis's collectives in its groups, for example

    rank 5, dp=2,shard=4: shard of ranks 4-7, all_gather of 1 MiB 0.8 GB/s, reduce_scatter 0.5 GB/s; dp of ranks 1, 5

Why it matters: a job with FSDP, tensor or pipeline parallelism makes its groups with init_device_mesh, which places
ranks row by row, so neighboring ranks share the last axis. If a rank makes a different mesh, it makes its groups in a
different order, and all ranks wait for each other. If the last axis is not the one that sends most, the mesh is slow.
"""

from collections.abc import Iterator

from ddp_doctor.checks.collectives.mesh import rules
from ddp_doctor.facts.collectives import MeshFact
from ddp_doctor.model.check import MESH, Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.mesh import compared_and_driven
from ddp_doctor.views.collective_sizes import measured


def probe(ctx: RankContext) -> MeshFact:
    """Compare the mesh on all ranks, create it and test its axes. Raises Misused if it does not match these ranks."""
    return compared_and_driven(ctx)


def untested(recording: Recording) -> str:
    """Return why the check does not pass without any collective of an axis."""
    groups = [group for rank in recording.facts(MeshFact) for group in rank.fact.groups]
    return "" if any(group.sizes or group.sources for group in groups) else "no collective of an axis was called"


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield the values that nccl-tests prints, by axis and collective, over all groups of the axis."""
    yield from measured(
        (name, len(group.members), rank.rank or 0, size.model_copy(update={"group": f"of axis {group.axis}"}))
        for rank in recording.facts(MeshFact)
        for group in rank.fact.groups
        for name, size in group.sizes.items()
    )


CHECK = Check(
    id=MESH,
    title="The mesh of the job is the same on all ranks, right and well placed",
    where=Where.RANK,
    probe=probe,
    facts=(MeshFact,),
    rules=rules_in(rules),
    needs_mesh=True,
    min_ranks=2,
    cost_s=3.0,
    deadline_s=20.0,
    measurements=measurements,
    untested=untested,
)
