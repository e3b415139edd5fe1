"""The mesh of a job by its rules: the right place of an axis, and meshes without a finding."""

from collections.abc import Mapping, Sequence

import pytest

from ddp_doctor import app
from ddp_doctor.checks.collectives.mesh.rules import groups_of
from ddp_doctor.cli.given import axes
from ddp_doctor.facts.collectives import AxisGroup, MeshFact, SizeResult
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording
from tests.readings import collected, uneven_world

MEASURED = {"size_bytes": 1 << 20, "time_us": 1.0, "min_us": 1.0, "max_us": 1.0, "iterations": 5, "wrong": 0}


def judged_mesh(mesh: str, nodes: Sequence[int], busbw: Mapping[str, float] | None = None) -> list[Finding]:
    """Return the findings of a mesh with these ranks per node and all-reduce bandwidths by axis."""
    told, world = axes(mesh), uneven_world(nodes)

    def fact(rank: int) -> MeshFact:
        groups = []
        for axis in (axis for axis in told if axis.size > 1):
            [members] = [group for group in groups_of(told, axis) if rank in group]
            rate = (busbw or {}).get(axis.name)
            size = SizeResult.model_validate({**MEASURED, "algbw_gb_per_s": rate or 1, "busbw_gb_per_s": rate or 1})
            sizes = {"all_reduce": size} if rate else {}
            groups.append(AxisGroup(axis=axis.name, members=members, sizes=sizes))
        return MeshFact(mesh=told, made=True, groups=tuple(groups))

    readings = [collected("mesh", fact(rank), world.node_of(rank), rank=rank) for rank in range(world.world_size)]
    options = Options(only=("mesh",), mesh=told)
    return list(app.judge(Recording(world=world, options=options, readings=tuple(readings))).report.findings)


def test_groups_equal_the_groups_that_torch_creates():
    mesh = axes("pp=2,dp=2,tp=2")

    assert [groups_of(mesh, axis) for axis in mesh] == [
        [(0, 4), (1, 5), (2, 6), (3, 7)],
        [(0, 2), (1, 3), (4, 6), (5, 7)],
        [(0, 1), (2, 3), (4, 5), (6, 7)],
    ]


@pytest.mark.parametrize(
    ("mesh", "title"),
    [
        ("shard=4,dp=2", "The shard axis crosses nodes, but the dp axis does not"),
        ("TP=2,dp=4", "The TP axis crosses nodes, but the dp axis does not"),
        ("tp=2,x=2,dp=2", "The tp axis crosses nodes, but the dp axis does not"),
    ],
)
def test_axis_with_more_traffic_belongs_within_a_node(mesh: str, title: str):
    [finding] = judged_mesh(mesh, (4, 4))

    assert (finding.code, finding.title, finding.culprits) == ("DD645", title, ())


@pytest.mark.parametrize(
    ("mesh", "nodes"),
    [
        ("dp=2,shard=4", (4, 4)),
        ("shard=8", (4, 4)),
        ("shard=8,dp=1", (4, 4)),
        ("a=4,b=2", (4, 4)),  # the traffic of these axes is unknown
        ("shard=4,x=2", (4, 4)),
        ("tp=2,dp=4", (8,)),
        ("shard=8,dp=2", (2,) * 8),  # larger than a node in any order
    ],
)
def test_mesh_without_a_known_better_order_has_no_finding(mesh: str, nodes: Sequence[int]):
    assert judged_mesh(mesh, nodes) == []
