"""The mesh of a job by its rules: where an axis belongs, and where nothing is said."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.checks.collectives.mesh.rules import groups_of
from ddp_doctor.cli.given import axes
from ddp_doctor.facts.collectives import AxisGroup, MeshFact, SizeResult
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording
from tests.readings import collected, uneven_world
from tests.recordings import judged, load

MEASURED = {"size_bytes": 1 << 20, "time_us": 1.0, "min_us": 1.0, "max_us": 1.0, "iterations": 5, "wrong": 0}


def judged_mesh(mesh: str, nodes: Sequence[int], busbw: Mapping[str, float] | None = None) -> list[Finding]:
    """Findings of a mesh on so many ranks a node, with these bandwidths of all-reduces by axis."""
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


def test_groups_are_those_that_torch_makes():
    mesh = axes("pp=2,dp=2,tp=2")

    assert [groups_of(mesh, axis) for axis in mesh] == [
        [(0, 4), (1, 5), (2, 6), (3, 7)],
        [(0, 2), (1, 3), (4, 6), (5, 7)],
        [(0, 1), (2, 3), (4, 5), (6, 7)],
    ]


@pytest.mark.parametrize(
    ("mesh", "title"),
    [
        ("shard=4,dp=2", "The shard axis crosses nodes, and the dp axis does not: put shard inside, dp=2,shard=4"),
        ("TP=2,dp=4", "The TP axis crosses nodes, and the dp axis does not: put TP inside, dp=4,TP=2"),
        ("tp=2,x=2,dp=2", "The tp axis crosses nodes, and the dp axis does not: put tp inside, dp=2,x=2,tp=2"),
    ],
)
def test_the_axis_that_sends_more_belongs_inside(mesh: str, title: str):
    [finding] = judged_mesh(mesh, (4, 4))

    assert (finding.code, finding.title, finding.culprits) == ("DD645", title, ())


@pytest.mark.parametrize(
    ("mesh", "nodes"),
    [
        ("dp=2,shard=4", (4, 4)),
        ("shard=8", (4, 4)),
        ("shard=8,dp=1", (4, 4)),
        ("a=4,b=2", (4, 4)),  # nobody knows what they send
        ("shard=4,x=2", (4, 4)),
        ("tp=2,dp=4", (8,)),
        ("shard=8,dp=2", (2,) * 8),  # larger than a node in any order
    ],
)
def test_where_no_other_order_is_known_to_be_better_nothing_is_said(mesh: str, nodes: Sequence[int]):
    assert judged_mesh(mesh, nodes) == []


def test_a_network_as_fast_as_the_links_of_a_node_is_no_reason():
    assert judged_mesh("tp=2,dp=4", (4, 4), {"tp": 300.0, "dp": 350.0}) == []
    [finding] = judged_mesh("tp=2,dp=4", (4, 4), {"tp": 40.0, "dp": 350.0})
    assert (finding.code, finding.confidence.value) == ("DD645", "likely")


def test_a_mesh_of_which_no_collective_could_be_called_is_not_healthy():
    recording = load("mesh/shard-axis-inside")

    def emptied(reading: Reading) -> Reading:
        if reading.check != "mesh":
            return reading
        fact: dict[str, Any] = dict(reading.fact or {})
        fact["groups"] = [group | {"sizes": {}, "sources": {}} for group in fact["groups"]]
        return reading.model_copy(update={"fact": fact})

    report = app.judge(recording.model_copy(update={"readings": tuple(map(emptied, recording.readings))})).report
    assert (report.verdict.value, "no collective of an axis was called" in report.summary) == ("unsure", True)


@pytest.mark.parametrize(
    ("variable", "values"),
    [
        ("SLURM_PROCID", ("0", "2")),  # node by node
        ("SLURM_NTASKS", ("2", "2")),  # one process a node, which starts the ranks itself
        ("SLURM_LOCALID", ("0", "1")),
    ],
)
def test_of_a_launcher_that_numbers_node_by_node_or_starts_no_ranks_nothing_is_said(
    variable: str, values: Sequence[str]
):
    recording = load("mesh/srun-numbers-ranks-by-turns")

    def edited(reading: Reading) -> Reading:
        if reading.check != "env_vars":
            return reading
        fact: dict[str, Any] = dict(reading.fact or {})
        fact["variables"] = fact["variables"] | {variable: values[reading.node]}
        return reading.model_copy(update={"fact": fact})

    readings = tuple(map(edited, recording.readings))
    assert app.judge(recording.model_copy(update={"readings": readings})).report.findings == ()


def test_every_group_of_an_axis_is_measured_in_the_report():
    measured = judged("mesh/shard-axis-inside").report.measurements

    groups = {(each.name, each.labels.get("group"), each.labels["ranks"]) for each in measured if "busbw" in each.name}
    assert ("reduce_scatter_busbw", "of axis shard", 2) in groups
    assert ("broadcast_busbw", "of axis dp", 2) in groups
