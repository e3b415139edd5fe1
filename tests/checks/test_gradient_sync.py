"""gradient_sync on real ranks: healthy worlds, and DDP sabotaged in every way that a rule names."""

from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest

from ddp_doctor.checks.ddp import gradient_sync
from ddp_doctor.checks.ddp.gradient_sync import CHECK
from ddp_doctor.model.recording import Recording
from tests.checks.judged_ranks import assert_found, blamed, judge_by, only, planted, record

pytestmark = pytest.mark.ranks

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)


# Scenarios: the code of each rank.


def sabotaged(ctx, hook):
    model = gradient_sync.wrap(ctx, gradient_sync.coded_model(ctx))
    model.register_comm_hook(ctx, hook)
    return gradient_sync.measure(ctx, model)


def reduced(ctx: Any, bucket: Any, weight: float = 1.0, scale: float = 1.0) -> Any:
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
    module = gradient_sync.coded_model(ctx)
    module._ddp_params_and_buffers_to_ignore = ["weight3", ".weight3"]  # DDP looks it up both ways
    return gradient_sync.measure(ctx, gradient_sync.wrap(ctx, module))


def frozen(ctx):
    module = gradient_sync.coded_model(ctx)
    module.weight1.requires_grad_(False)
    return gradient_sync.measure(ctx, gradient_sync.wrap(ctx, module))


def no_sync_syncs(ctx):
    model = gradient_sync.wrap(ctx, gradient_sync.coded_model(ctx))
    model.no_sync = nullcontext
    return gradient_sync.measure(ctx, model)


def no_sync_never_ends(ctx):
    model = gradient_sync.wrap(ctx, gradient_sync.coded_model(ctx))

    @contextmanager
    def for_ever():
        model.require_backward_grad_sync = False
        yield

    model.no_sync = for_ever
    return gradient_sync.measure(ctx, model)


def no_sync_forgets(ctx):
    model = gradient_sync.wrap(ctx, gradient_sync.coded_model(ctx))
    whole = gradient_sync._one_step

    def forgetful(context, ddp, scale, *, sync):
        if scale == 2 and context.rank == 2:
            ddp.zero_grad()
        return whole(context, ddp, scale, sync=sync)

    gradient_sync._one_step = forgetful
    try:
        return gradient_sync.measure(ctx, model)
    finally:
        gradient_sync._one_step = whole


def buckets(ctx):
    model = gradient_sync.wrap(ctx, gradient_sync.coded_model(ctx))
    gradient_sync.measure(ctx, model)
    return len(model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(","))


# Healthy worlds


@pytest.mark.parametrize("on", [(0,), (1, 3), (0, 1, 2), (0, 1, 2, 3)], ids=str)
def test_healthy_ranks_have_no_finding(ranks, on):
    facts = ranks.facts(gradient_sync.probe, on=on)
    assert judge(recording(facts, on)) == []
    assert all(fact.parameters == 5 and fact.world_size == len(on) for fact in facts)


def test_world_size_of_a_power_of_two_gives_the_exact_mean(ranks):
    for fact in ranks.facts(gradient_sync.probe):
        assert fact.step.max_abs_error == fact.resync.max_abs_error == fact.no_sync.max_abs_error == 0.0


def test_the_model_fills_several_buckets(ranks):
    assert all(number == 2 for number in ranks.facts(buckets))


def test_every_step_has_the_same_name_and_detail_on_all_ranks(ranks):
    results = ranks.run(gradient_sync.probe)
    assert len({one.steps for one in results}) == 1
    names = [name for name, _ in results[0].steps]
    assert names == ["ddp_construct", *["forward", "backward"] * 3, "all_gather"]


def test_a_communication_hook_that_averages_is_healthy(ranks):
    assert judge(recording(ranks.facts(sabotaged, honest))) == []


def test_measurements_cover_construction_forward_and_backward(ranks):
    assert CHECK.measurements is not None
    found = list(CHECK.measurements(recording(ranks.facts(gradient_sync.probe))))
    names = [one.name.removeprefix("gradient_sync_") for one in found]
    assert names == ["ddp_construct", "forward", "backward"]
    assert all(one.unit == "s" and one.value > 0 for one in found)
    assert list(CHECK.measurements(Recording())) == []


# Sabotage


@planted(
    ("a rank missing from the mean", (sabotaged, drops_rank_2), "DD701", [2], "rank 2's share is missing"),
    ("a rank counted twice", (sabotaged, doubles_rank_1), "DD701", [1], "rank 1's share counts 2 times"),
    ("a sum in place of the mean", (sabotaged, sums), "DD701", [], "the sum of the ranks' gradients"),
    ("zero gradients", (sabotaged, zeroes), "DD701", [], "it is zero"),
    (
        *("a broadcast in place of the mean, by no fault of its source", (sabotaged, hands_out_rank_1)),
        *("DD701", [], "it is the gradient of rank 1 alone"),
    ),
    (
        *("a garbled element", (sabotaged, garbles_one_element), "DD701", []),
        *("likely", "(the faulty rank is unknown): it matches no combination of the ranks' gradients"),
    ),
    (
        *("a rank that keeps its own gradient", (sabotaged, rank_1_keeps_its_own), "DD702", [1]),
        "Gradient on rank 1 (node1) is wrong",
    ),
    ("ranks that all keep their own gradient", (sabotaged, everyone_keeps_its_own), "DD702", [], "every rank"),
    ("a rank that gets NaN", (sabotaged, rank_3_gets_not_a_number), "DD702", [3], "not a finite number"),
    ("last bits that differ", (sabotaged, rank_0_is_one_bit_off), "DD702", [], "error"),
    ("a parameter that DDP ignores", (ignored,), "DD702", [], "Wrong in ddp-doctor's own model: weight3 on every rank"),
    (
        "a parameter without gradient",
        (frozen,),
        "DD701",
        [],
        "Wrong in ddp-doctor's own model: weight1 on every rank",
        "it is missing",
    ),
    ("no_sync that synchronizes", (no_sync_syncs,), "DD703", [], "every rank", "it is the mean of all ranks"),
    (
        *("no_sync that never ends", (no_sync_never_ends,), "DD704", []),
        *("step after no_sync(), the gradient on every rank is wrong", "it is the local gradient"),
    ),
    (*("what one rank accumulated and lost", (no_sync_forgets,), "DD704", []), "rank 2's share counts 0.6667 times"),
)
def test_injected_defect_is_reported(ranks, scenario, code, ranks_blamed, words):
    assert_found(judge(recording(ranks.facts(*scenario))), code, ranks_blamed, words)


@pytest.mark.parametrize(
    ("hook", "on", "code", "rank"), [(drops_rank_2, (0, 2, 3), "DD701", 2), (rank_1_keeps_its_own, (0, 1), "DD702", 1)]
)
def test_a_rank_keeps_its_number_in_a_smaller_world(ranks, hook, on, code, rank):
    assert blamed(only(judge(recording(ranks.facts(sabotaged, hook, on=on), on)), code)) == [rank]


def test_nccl_gets_its_simplest_protocol_as_a_remedy(ranks):
    facts = ranks.facts(sabotaged, drops_rank_2)
    finding = only(judge(recording(facts, backend="nccl")), "DD701")
    assert finding.remedies[0].settings[0].name == "NCCL_PROTO"
    assert not any(remedy.settings for remedy in judge(recording(facts))[0].remedies)


def test_recording_without_a_world_is_evaluated(ranks):
    whole = recording(ranks.facts(sabotaged, drops_rank_2)).model_copy(update={"world": None})
    assert only(judge(whole), "DD701").culprits[0].rank == 2
