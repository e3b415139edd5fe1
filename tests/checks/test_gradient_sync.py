"""gradient_sync on real ranks: healthy worlds, and DDP sabotaged in every way that a rule names."""

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest

from ddp_doctor.checks.ddp import gradient_sync
from ddp_doctor.checks.ddp.gradient_sync import CHECK, steps
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.recording import Recording
from tests.checks.judged_ranks import blamed, judge_by, only, record

pytestmark = pytest.mark.ranks

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)


# Scenarios: what runs on each rank.


def sabotaged(ctx, hook):
    """The probe with a communication hook in place of DDP's own average."""
    model = steps.wrap(ctx, steps.coded_model(ctx))
    model.register_comm_hook(ctx, hook)
    return steps.measure(ctx, model)


def reduced(ctx: Any, bucket: Any, weight: float = 1.0, scale: float = 1.0) -> Any:
    """A future of the ranks' mean, in which this rank enters ``weight`` times."""
    import torch.distributed as dist

    buffer = bucket.buffer() * (weight / ctx.world_size)
    future = dist.all_reduce(buffer, group=ctx.group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0] * scale)


def honest(ctx, bucket):
    return reduced(ctx, bucket)


def drops_rank_2(ctx, bucket):
    return reduced(ctx, bucket, weight=0.0 if ctx.rank == 2 else 1.0)


def doubles_rank_1(ctx, bucket):
    return reduced(ctx, bucket, weight=2.0 if ctx.rank == 1 else 1.0)


def sums(ctx, bucket):
    return reduced(ctx, bucket, scale=ctx.world_size)


def zeroes(ctx, bucket):
    return reduced(ctx, bucket, scale=0.0)


def hands_out_rank_1(ctx, bucket):
    import torch.distributed as dist

    buffer = bucket.buffer() * (ctx.world_size if ctx.rank == 1 else 0) / ctx.world_size
    future = dist.all_reduce(buffer, group=ctx.group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def rank_1_keeps_its_own(ctx, bucket):
    own = bucket.buffer().clone()
    return reduced(ctx, bucket).then(lambda done: own if ctx.rank == 1 else done.value())


def everyone_keeps_its_own(ctx, bucket):
    own = bucket.buffer().clone()
    return reduced(ctx, bucket).then(lambda done: own)


def garbles_one_element(ctx, bucket):
    def garble(done):
        mean = done.value()
        mean[300] += 0.25
        return mean

    return reduced(ctx, bucket).then(garble)


def rank_3_gets_not_a_number(ctx, bucket):
    return reduced(ctx, bucket).then(lambda done: done.value() * float("nan" if ctx.rank == 3 else 1))


def rank_0_is_one_bit_off(ctx, bucket):
    import torch

    def nudge(done):
        mean = done.value()
        return torch.nextafter(mean, mean + 1) if ctx.rank == 0 else mean

    return reduced(ctx, bucket).then(nudge)


def ignored(ctx):
    """One parameter that DDP is told to leave alone."""
    module = steps.coded_model(ctx)
    module._ddp_params_and_buffers_to_ignore = ["weight3", ".weight3"]  # DDP looks it up both ways
    return steps.measure(ctx, steps.wrap(ctx, module))


def frozen(ctx):
    module = steps.coded_model(ctx)
    module.weight1.requires_grad_(False)
    return steps.measure(ctx, steps.wrap(ctx, module))


def no_sync_syncs(ctx):
    model = steps.wrap(ctx, steps.coded_model(ctx))
    model.no_sync = nullcontext
    return steps.measure(ctx, model)


def no_sync_never_ends(ctx):
    model = steps.wrap(ctx, steps.coded_model(ctx))

    @contextmanager
    def for_ever():
        model.require_backward_grad_sync = False
        yield

    model.no_sync = for_ever
    return steps.measure(ctx, model)


def no_sync_forgets(ctx):
    """Leaving no_sync() throws away what it accumulated, on rank 2 alone."""
    model = steps.wrap(ctx, steps.coded_model(ctx))
    whole = steps._one_step

    def forgetful(context, ddp, scale, *, sync):
        if scale == 2 and context.rank == 2:
            ddp.zero_grad()
        return whole(context, ddp, scale, sync=sync)

    steps._one_step = forgetful
    try:
        return steps.measure(ctx, model)
    finally:
        steps._one_step = whole


def buckets(ctx):
    model = steps.wrap(ctx, steps.coded_model(ctx))
    steps.measure(ctx, model)
    return len(model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(","))


# Healthy worlds


@pytest.mark.parametrize("on", [(0,), (0, 1), (1, 3), (0, 1, 2), (0, 1, 2, 3)], ids=str)
def test_healthy_ranks_give_no_finding(ranks, on):
    facts = ranks.facts(gradient_sync.probe, on=on)
    assert judge(recording(facts, on)) == []
    assert all(fact.parameters == 5 and fact.world_size == len(on) for fact in facts)


def test_a_world_of_a_power_of_two_gets_the_exact_mean(ranks):
    for fact in ranks.facts(gradient_sync.probe):
        assert fact.step.max_abs_error == fact.resync.max_abs_error == fact.no_sync.max_abs_error == 0.0


def test_the_model_fills_several_buckets(ranks):
    assert all(number == 2 for number in ranks.facts(buckets))


def test_every_step_has_the_same_name_and_detail_on_all_ranks(ranks):
    results = ranks.run(gradient_sync.probe)
    assert len({one.steps for one in results}) == 1
    names = [name for name, _ in results[0].steps]
    assert names == ["ddp_construct", *["forward", "backward"] * 3, "all_gather"]


def test_two_ranks_take_less_than_the_budget(ranks):
    ranks.run(gradient_sync.probe, on=(0, 1))
    quickest = min(max(one.duration_s for one in ranks.run(gradient_sync.probe, on=(0, 1))) for _ in range(3))
    assert quickest < 0.15


def test_a_communication_hook_that_averages_is_healthy(ranks):
    assert judge(recording(ranks.facts(sabotaged, honest))) == []


def test_measurements_tell_the_slowest_rank(ranks):
    assert CHECK.measurements is not None
    found = list(CHECK.measurements(recording(ranks.facts(gradient_sync.probe))))
    names = [one.name.removeprefix("gradient_sync_") for one in found]
    assert names == [
        "ddp_construct",
        "forward",
        "backward",
    ]
    assert all(one.unit == "s" and one.value > 0 for one in found)
    assert list(CHECK.measurements(Recording())) == []


# Sabotage


def test_a_rank_missing_from_the_mean_is_named(ranks):
    finding = only(judge(recording(ranks.facts(sabotaged, drops_rank_2))), "DD701")
    assert blamed(finding) == [2]
    assert finding.culprits[0].node == "node2"
    assert "rank 2's share is missing" in finding.title


def test_a_missing_rank_keeps_its_number_in_a_smaller_world(ranks):
    on = (0, 2, 3)
    finding = only(judge(recording(ranks.facts(sabotaged, drops_rank_2, on=on), on)), "DD701")
    assert blamed(finding) == [2]


def test_a_rank_counted_twice_is_named(ranks):
    finding = only(judge(recording(ranks.facts(sabotaged, doubles_rank_1))), "DD701")
    assert blamed(finding) == [1]
    assert "rank 1's share counts 2 times" in finding.title


def test_a_sum_in_place_of_the_mean_blames_nobody(ranks):
    finding = only(judge(recording(ranks.facts(sabotaged, sums))), "DD701")
    assert blamed(finding) == []
    assert "the sum of the ranks' gradients" in finding.title


def test_zero_gradients_blame_nobody(ranks):
    finding = only(judge(recording(ranks.facts(sabotaged, zeroes))), "DD701")
    assert blamed(finding) == []
    assert "it is zero" in finding.title


def test_a_broadcast_in_place_of_the_mean_does_not_blame_the_rank_it_came_from(ranks):
    finding = only(judge(recording(ranks.facts(sabotaged, hands_out_rank_1))), "DD701")
    assert blamed(finding) == []
    assert "it is the gradient of rank 1 alone" in finding.title


def test_a_garbled_element_is_found_and_nobody_is_named(ranks):
    finding = only(judge(recording(ranks.facts(sabotaged, garbles_one_element))), "DD701")
    assert blamed(finding) == []
    assert finding.confidence is Confidence.POSSIBLE
    assert "unsure which rank is off: no rank's share explains it" in finding.title
    assert finding.evidence[0].value == pytest.approx((finding.evidence[0].expected or 0.0) + 0.25)


def test_a_rank_that_keeps_its_own_gradient_is_named(ranks):
    finding = only(judge(recording(ranks.facts(sabotaged, rank_1_keeps_its_own))), "DD702")
    assert blamed(finding) == [1]
    assert "The gradient on rank 1 (node1) is not the mean" in finding.title


def test_two_ranks_of_which_one_keeps_its_own_gradient(ranks):
    facts = ranks.facts(sabotaged, rank_1_keeps_its_own, on=(0, 1))
    assert blamed(only(judge(recording(facts)), "DD702")) == [1]


def test_ranks_that_all_keep_their_own_gradient_are_not_blamed(ranks):
    finding = only(judge(recording(ranks.facts(sabotaged, everyone_keeps_its_own))), "DD702")
    assert blamed(finding) == []
    assert "every rank" in finding.title


def test_a_rank_that_gets_nan_is_named(ranks):
    finding = only(judge(recording(ranks.facts(sabotaged, rank_3_gets_not_a_number))), "DD702")
    assert blamed(finding) == [3]
    assert "not a finite number" in finding.title


def test_last_bits_that_differ_are_a_warning(ranks):
    finding = only(judge(recording(ranks.facts(sabotaged, rank_0_is_one_bit_off))), "DD702")
    assert finding.severity is Severity.WARNING
    assert blamed(finding) == []


def test_a_parameter_that_ddp_ignores_is_named(ranks):
    finding = only(judge(recording(ranks.facts(ignored))), "DD702")
    assert "Off are weight3 of" in finding.detail
    assert blamed(finding) == []


def test_a_parameter_without_gradient_is_named(ranks):
    finding = only(judge(recording(ranks.facts(frozen))), "DD701")
    assert "Off are weight1 of" in finding.detail
    assert "there is none" in finding.title


def test_no_sync_that_synchronises_is_found(ranks):
    finding = only(judge(recording(ranks.facts(no_sync_syncs))), "DD703")
    assert "every rank" in finding.title
    assert "it is the mean of all ranks" in finding.title


def test_no_sync_that_never_ends_is_found(ranks):
    finding = only(judge(recording(ranks.facts(no_sync_never_ends))), "DD704")
    assert "not synchronised on every rank" in finding.title
    assert "the rank's own gradient alone" in finding.title


def test_what_one_rank_accumulated_and_lost_is_found(ranks):
    finding = only(judge(recording(ranks.facts(no_sync_forgets))), "DD704")
    assert "rank 2's share counts 0.6667 times" in finding.title


def test_nccl_gets_its_plainest_protocol_as_a_remedy(ranks):
    facts = ranks.facts(sabotaged, drops_rank_2)
    finding = only(judge(recording(facts, backend="nccl")), "DD701")
    assert finding.remedies[0].settings[0].name == "NCCL_PROTO"
    assert not any(remedy.settings for remedy in judge(recording(facts))[0].remedies)


def test_a_recording_without_world_is_judged_too(ranks):
    whole = recording(ranks.facts(sabotaged, drops_rank_2)).model_copy(update={"world": None})
    assert only(judge(whole), "DD701").culprits[0].rank == 2
