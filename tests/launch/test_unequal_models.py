"""Models that differ between the doctor's own workers: named in moments, before anything hangs."""

import pytest

from tests.checks import test_initial_state as scenarios
from tests.launch.conftest import Play
from tests.waiting import LIMIT_S, wait_forever

pytestmark = pytest.mark.ranks
torches = pytest.mark.torches("models that differ between ranks")


def extra_head_on_rank_1(ctx):
    return scenarios.models_differ(ctx, "extra head", (1,))


def other_type_on_rank_1(ctx):
    """Left to DDP, the rank aborts: gloo gets more bytes than it expects."""
    return scenarios.models_differ(ctx, "dtype", (1,))


def other_order_on_rank_2(ctx):
    """Without the check, DDP raises no error and mixes up the layers."""
    return scenarios.models_differ(ctx, "order", (2,))


def buffer_on_rank_1_alone(ctx):
    return scenarios.models_differ(ctx, "buffer", (1,))


@pytest.mark.parametrize(
    ("probe", "code", "rank"),
    [
        pytest.param(extra_head_on_rank_1, "DD740", 1, marks=pytest.mark.smoke),
        (other_type_on_rank_1, "DD740", 1),
        (other_order_on_rank_2, "DD741", 2),
        (buffer_on_rank_1_alone, "DD742", 1),
    ],
)
@torches
def test_rank_with_another_model_is_reported_before_a_hang(play: Play, probe, code, rank):
    scenario = play(probe, ranks=3, deadline_s=LIMIT_S)

    assert scenario.codes == [code]
    assert scenario.culprits == [rank]


def test_neither_of_two_ranks_with_two_models_is_blamed(play: Play):
    scenario = play(extra_head_on_rank_1, ranks=2, deadline_s=LIMIT_S)

    assert scenario.codes == ["DD740"]
    assert scenario.culprits == []
    assert "differs between rank 1 and rank 0" in scenario.title


def wraps_it_all_the_same(ctx):
    """Do the same as the job: rank 1's model has a layer of another type, and no rank compares them."""
    from torch.nn.parallel import DistributedDataParallel

    with ctx.step("ddp_construct"):
        DistributedDataParallel(scenarios.odd_model("dtype" if ctx.rank == 1 else ""), process_group=ctx.group)
        wait_forever()


def test_same_difference_kills_a_rank_without_the_check(play: Play):
    scenario = play(wraps_it_all_the_same, ranks=3, deadline_s=LIMIT_S)

    assert scenario.codes != []
    assert not set(scenario.codes) & {"DD740", "DD741", "DD742"}
