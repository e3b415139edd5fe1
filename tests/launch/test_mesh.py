"""The mesh of a job on real ranks: only a rank with an injected fault is reported; healthy meshes have no finding."""

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ddp_doctor.checks.collectives import mesh
from ddp_doctor.cli.given import axes
from ddp_doctor.facts.collectives import MeshFact
from ddp_doctor.features.model.user_model import check as user_model
from ddp_doctor.model.choices import Status
from ddp_doctor.model.context import RankContext
from ddp_doctor.probing import collectives
from ddp_doctor.probing.mesh import compared_and_driven
from tests.launch.conftest import Play, Scenario
from tests.waiting import wait_forever

pytestmark = pytest.mark.ranks

#: The rank that misbehaves.
BAD = 1
#: The time until inactive ranks are evaluated, and working ranks of a busy machine.
HANGS = {"still_s": 2.0, "deadline_s": 60.0}


def before(ctx: RankContext, name: str, axis: str, act: Callable[[], Any]) -> None:
    """Let this rank do something before it enters the first step of this name, of this axis."""
    step, within = ctx.step, ctx.within
    now = [""]

    def entered(other: str, members: Sequence[int]) -> Any:
        now[0] = other
        return within(other, members)

    def stepped(step_name: str, *args: Any, **more: Any) -> Any:
        if (step_name, now[0]) == (name, axis):
            act()
        return step(step_name, *args, **more)

    ctx.within, ctx.step = entered, stepped  # type: ignore[method-assign, assignment]


def never_enters_its_axis(ctx: RankContext) -> MeshFact:
    if ctx.rank == BAD:
        before(ctx, "all_gather", "shard", wait_forever)
    return compared_and_driven(ctx)


def never_makes_the_mesh(ctx: RankContext) -> MeshFact:
    if ctx.rank == BAD:
        before(ctx, "init_device_mesh", "", wait_forever)
    return compared_and_driven(ctx)


def is_killed_in_its_axis(ctx: RankContext) -> MeshFact:
    if ctx.rank == BAD:
        before(ctx, "reduce_scatter", "shard", lambda: os.kill(os.getpid(), signal.SIGKILL))
    return compared_and_driven(ctx)


def is_stopped_in_its_axis(ctx: RankContext) -> MeshFact:
    if ctx.rank == BAD:
        before(ctx, "all_reduce", "dp", lambda: os.kill(os.getpid(), signal.SIGSTOP))
    return compared_and_driven(ctx)


def has_another_order(ctx: RankContext) -> MeshFact:
    if ctx.rank == BAD:
        ctx.options = ctx.options.model_copy(update={"mesh": ctx.options.mesh[::-1]})
    return compared_and_driven(ctx)


def are_of_two_minds(ctx: RankContext) -> MeshFact:
    if ctx.rank % 2:
        ctx.options = ctx.options.model_copy(update={"mesh": axes("dp=4,shard=1")})
    return compared_and_driven(ctx)


def gives_a_stale_share(ctx: RankContext) -> MeshFact:
    if ctx.rank == BAD:
        run = collectives.Call.run

        def stale(call: collectives.Call) -> None:
            if call.row.name == "all_gather":
                call.given.zero_()
            run(call)

        collectives.Call.run = stale  # type: ignore[method-assign, assignment]
    return compared_and_driven(ctx)


def mixes_up_two_axes_at_once(ctx: RankContext) -> MeshFact:
    """Mix up data of two axes in use at once, like a library that confuses two communicators."""
    import torch.distributed as dist

    reduce = dist.all_reduce

    def mixed_up(tensor: Any, **more: Any) -> Any:
        if more.get("async_op") and ctx.rank == BAD:
            tensor.zero_()
        return reduce(tensor, **more)

    dist.all_reduce = mixed_up  # type: ignore[assignment]
    return compared_and_driven(ctx)


def told(scenario: Scenario) -> tuple[list[str], set[int | None]]:
    return scenario.codes, set(scenario.culprits)


@pytest.mark.parametrize(
    ("probe", "code", "says"),
    [
        (never_enters_its_axis, "DD610", "of axis shard (ranks 0, 1)"),
        (never_makes_the_mesh, "DD610", "never entered init_device_mesh"),
        (is_killed_in_its_axis, "DD612", "SIGKILL"),
        (is_stopped_in_its_axis, "DD611", "is stopped"),
        (
            has_another_order,
            "DD643",
            "would create the mesh groups in a different order: shard=2,dp=2, not dp=2,shard=2",
        ),
        (gives_a_stale_share, "DD644", "all data from rank 1 arrives wrong"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_single_rank_with_a_fault_is_reported(play: Play, probe: Callable[..., MeshFact], code: str, says: str):
    scenario = play(probe, ranks=4, mesh="dp=2,shard=2", **HANGS)

    assert code in scenario.codes
    assert set(scenario.culprits) == {BAD}
    assert any(says in finding.title for finding in scenario.outcome.report.findings), scenario.title


def test_two_halves_with_different_meshes_blame_no_rank_and_make_no_group(play: Play):
    scenario = play(are_of_two_minds, ranks=4, mesh="dp=2,shard=2", **HANGS)

    assert told(scenario) == (["DD643"], set())
    assert not any(rank.fact.made for rank in scenario.outcome.recording.facts(MeshFact))


def test_mesh_that_is_wrong_only_with_all_axes_in_use_blames_no_rank(play: Play):
    scenario = play(mixes_up_two_axes_at_once, ranks=4, mesh="dp=2,shard=2", **HANGS)

    assert told(scenario) == (["DD644"] * 2, set())


def test_a_mesh_of_other_ranks_than_there_are_is_misused(play: Play):
    scenario = play(compared_and_driven, ranks=2, mesh="dp=2,shard=4", **HANGS)

    [reading, _] = scenario.outcome.recording.of_check("scenario")
    assert (reading.status, reading.misused) == (Status.FAILED, True)
    assert "its sizes multiply to 8, and the world has 2 ranks" in (reading.reason or "")


def test_mesh_of_one_rank_is_reported_as_untested(play: Play):
    scenario = play(compared_and_driven, ranks=1, mesh="dp=1", then=[mesh.CHECK])

    [left_out] = [left_out for left_out in scenario.outcome.recording.not_run if left_out.check == "mesh"]
    assert left_out.reason == "needs 2 ranks, 1 is all this run has"


# --- the mesh that the user's factory returns -----------------------------------------------------------


def with_model(play: Play, name: str) -> Scenario:
    """Run the check of a model of tests/models/meshes.py and the check of its mesh in the same processes."""
    model = f"tests.models.meshes:{name}"
    return play(user_model.probe, 4, 60.0, "user_model", needs_model=True, model=model, then=[mesh.CHECK])


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("two_by_two", {("dp", (0, 2)), ("dp", (1, 3)), ("shard", (0, 1)), ("shard", (2, 3))}),
        ("without_names", {("dim_0", (0, 2)), ("dim_0", (1, 3)), ("dim_1", (0, 1)), ("dim_1", (2, 3))}),
        ("in_an_order_of_its_own", {("tp", (0, 2)), ("tp", (1, 3)), ("dp", (0, 3)), ("dp", (1, 2))}),
    ],
)
@pytest.mark.torches("the mesh of a job")
def test_mesh_of_a_model_is_tested_as_it_was_created(play: Play, name: str, groups: set[tuple[str, tuple[int, ...]]]):
    scenario = with_model(play, name)

    assert scenario.codes == []
    facts = scenario.outcome.recording.facts(MeshFact)
    assert {(group.axis, group.members) for rank in facts for group in rank.fact.groups if group.sizes} == groups


def test_factory_with_another_mesh_on_one_rank_is_reported_before_a_hang(play: Play):
    scenario = with_model(play, "in_another_order_on_rank_1")

    assert told(scenario) == (["DD643"], {BAD})
    assert "would create a different mesh: dp=4,shard=1, not dp=2,shard=2" in scenario.title


def test_rank_whose_factory_makes_no_mesh_is_reported_while_others_wait(play: Play):
    scenario = with_model(play, "on_all_but_rank_1")

    assert told(scenario) == (["DD643"], {BAD})
    assert "would create a different mesh: none, not dp=2,shard=2" in scenario.title


def test_rank_that_fails_before_it_makes_the_mesh_is_reported_by_its_error(play: Play):
    scenario = with_model(play, "fails_before_it_on_rank_1")

    assert told(scenario) == (["DD771"], {BAD, None})  # None: the line of the user's code
    assert "raises ValueError" in scenario.title


def test_invalid_mesh_is_misused(play: Play):
    scenario = with_model(play, "no_mesh_at_all")

    [reading, *_] = scenario.outcome.recording.of_check("user_model")
    assert (reading.misused, "returns type tuple as the mesh" in (reading.reason or "")) == (True, True)


def test_mesh_of_some_ranks_is_not_tested(play: Play):
    scenario = with_model(play, "of_half_of_the_ranks")

    assert scenario.codes == []
    readings = scenario.outcome.recording.of_check("mesh")
    assert {reading.reason for reading in readings} == {"the mesh shard=2 of --model does not include all ranks"}


@pytest.mark.parametrize(
    ("ranks", "axes_of"),
    [
        (2, "dp=2"),
        (2, "dp=1,tp=2"),
        (3, "shard=3"),
        (4, "dp=2,shard=2"),
        (4, "tp=2,dp=2"),
        (4, "a=2,b=2"),
        (4, "ep=4"),
        (4, "dp=2,x=1,cp=2"),
        (4, "dp=1,shard=1,tp=4"),
        (8, "pp=2,dp=2,tp=2"),
    ],
)
@pytest.mark.torches("the mesh of a job")
def test_healthy_mesh_has_no_finding_and_every_axis_is_measured(play: Play, ranks: int, axes_of: str):
    scenario = play(compared_and_driven, ranks=ranks, deadline_s=60.0, mesh=axes_of)

    assert scenario.codes == []
    facts = scenario.outcome.recording.facts(MeshFact)
    measured = {group.axis for rank in facts for group in rank.fact.groups if group.sizes and not group.wrong}
    assert (len(facts), measured) == (ranks, {axis.name for axis in axes(axes_of) if axis.size > 1})
