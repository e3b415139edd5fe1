"""mixed_precision on real ranks: healthy worlds, and scaling and reduction broken as its rules name it."""

from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from ddp_doctor.checks.ddp import mixed_precision
from ddp_doctor.checks.ddp.mixed_precision import CHECK
from ddp_doctor.facts.ddp.gradients import MixedPrecision
from ddp_doctor.model.choices import Level
from tests.checks.judged_ranks import assert_found, blamed, judge_by, only, planted, record

pytestmark = pytest.mark.ranks

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)


# Scenarios: what runs on each rank.


def thorough(ctx):
    ctx.level = Level.THOROUGH
    return mixed_precision.probe(ctx)


def hooked_by(ctx: Any, hook: Any) -> Any:
    """A way to wrap with a communication hook in place of DDP's own average."""

    def pretends(_state, bucket):  # torch looks at the annotations of a hook
        return hook(ctx, bucket)

    def wrapped(this: Any, module: Any) -> Any:
        model = mixed_precision.wrap(this, module)
        model.register_comm_hook(None, pretends)
        return model

    return wrapped


def scaled_steps(ctx: Any, hook: Any = None, scaler: Any = mixed_precision.scaler_of) -> MixedPrecision:
    wrapped = mixed_precision.wrap if hook is None else hooked_by(ctx, hook)
    return MixedPrecision(
        world_size=ctx.world_size, scaled=(mixed_precision.measure_scaled(ctx, "bfloat16", wrapped, scaler),)
    )


def half_steps(ctx: Any, hook: Any, dtype: str) -> MixedPrecision:
    return MixedPrecision(
        world_size=ctx.world_size, halves=(mixed_precision.measure_half(ctx, dtype, hooked_by(ctx, hook)),)
    )


def reduced(ctx: Any, buffer: Any) -> Any:
    import torch.distributed as dist

    future = dist.all_reduce(buffer, group=ctx.group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def honest(ctx: Any, bucket: Any) -> Any:
    return reduced(ctx, bucket.buffer() / ctx.world_size)


def divides_last(ctx, bucket):
    return reduced(ctx, bucket.buffer().clone()).then(lambda total: total.value() / ctx.world_size)


def sums(ctx, bucket):
    return reduced(ctx, bucket.buffer().clone())


def removes_infinities(ctx, bucket):
    return reduced(ctx, bucket.buffer().nan_to_num(posinf=0.0) / ctx.world_size)


def keeps_infinities_to_itself(ctx, bucket):
    """A rank whose gradient is infinite sends zeros and keeps its own."""
    own = bucket.buffer().clone()
    finite = bool(own.isfinite().all())
    mean = reduced(ctx, (own if finite else own.new_zeros(own.shape)) / ctx.world_size)
    return mean.then(lambda done: done.value() if finite else own)


def nudges_on_rank_0(ctx, bucket):
    import torch

    mean = honest(ctx, bucket)
    return mean.then(lambda one: torch.nextafter(one.value(), one.value() + 1) if ctx.rank == 0 else one.value())


def loses_rank_1(ctx, bucket):
    return reduced(ctx, bucket.buffer() * (0.0 if ctx.rank == 1 else 1 / ctx.world_size))


def loses_a_little(ctx, bucket):
    return reduced(ctx, bucket.buffer() / ctx.world_size * 0.98)


def quarters_on_rank_1(ctx):
    import torch

    def scaler(device):
        return torch.amp.GradScaler(
            device, init_scale=mixed_precision.SCALE, backoff_factor=0.25 if ctx.rank == 1 else 0.5
        )

    return scaled_steps(ctx, scaler=scaler)


def never_backs_off(ctx):
    import torch

    def scaler(device):
        return torch.amp.GradScaler(device, init_scale=mixed_precision.SCALE, backoff_factor=1.0 - 1e-9)

    return scaled_steps(ctx, scaler=scaler)


def old_torch(ctx):
    import torch

    with patch.object(torch, "amp", object()):
        return scaled_steps(ctx)


def old_torch_on_rank_1(ctx: Any) -> MixedPrecision:
    import torch

    with patch.object(torch, "amp", object() if ctx.rank == 1 else torch.amp):
        return scaled_steps(ctx)


def old_gpu_on_rank_1(ctx: Any) -> MixedPrecision:
    import torch

    def refuses(*_: Any) -> Any:
        raise RuntimeError("Current CUDA Device does not support bfloat16.\nPlease switch dtype to float16.")

    with patch.object(torch, "autocast", refuses if ctx.rank == 1 else torch.autocast):
        return scaled_steps(ctx)


def backend_without_bfloat16(ctx):
    import torch.distributed as dist

    def refuses(tensor, **_):
        raise RuntimeError(f"Invalid scalar type {tensor.dtype}")

    with patch.object(dist, "all_reduce", refuses):
        return half_steps(ctx, honest, "bfloat16")


# Healthy worlds


@pytest.mark.parametrize("on", [(1, 3), (0, 1, 2), (0, 1, 2, 3)], ids=str)
def test_healthy_ranks_give_no_finding(ranks, on):
    facts = ranks.facts(mixed_precision.probe, on=on)
    assert judge(recording(facts, on)) == []
    assert [step.stepped for step in facts[0].scaled[0].steps] == [True, False, True]
    assert facts[0].scaled[0].infinite_rank == on[-1]


@pytest.mark.parametrize("on", [(0, 1, 2), (0, 1, 2, 3)], ids=str)
def test_all_formats_are_right_on_healthy_ranks(ranks, on):
    facts = ranks.facts(thorough, on=on)
    assert judge(recording(facts, on)) == []
    assert {one.dtype for one in facts[0].halves} == {"float16", "bfloat16"}
    assert all(one.large_mean == pytest.approx(one.large, rel=0.02) for one in facts[0].halves)


def test_every_step_has_the_same_name_and_detail_on_all_ranks(ranks):
    assert len({one.steps for one in ranks.run(thorough)}) == 1


def test_a_hook_that_averages_is_healthy(ranks):
    assert judge(recording(ranks.facts(scaled_steps, honest))) == []
    assert judge(recording(ranks.facts(half_steps, honest, "float16"))) == []


# Planted defects


@planted(
    (  # the three that stepped are no minority
        *("a rank that skips alone", (scaled_steps, keeps_infinities_to_itself), "DD730", []),
        *("rank 3 (node3) skipped the step", "Rank 3's gradient is infinite"),
    ),
    ("infinities that are removed", (scaled_steps, removes_infinities), "DD732", [], "no rank skips the step"),
    ("a scale that does not back off", (never_backs_off,), "DD732", [], "the scale is not halved"),
    ("a sum under autocast", (scaled_steps, sums), "DD733", [], "the sum of the ranks' gradients"),
    ("weights that drift in their last bits", (scaled_steps, nudges_on_rank_0), "DD737", [], "warning", "rank 0 ("),
    (
        *("a sum before the division in float16", (half_steps, divides_last, "float16"), "DD734", []),
        *("float16", "every rank"),
    ),
    (
        *("a sum before the division in bfloat16", (half_steps, divides_last, "bfloat16"), "DD734", []),
        *("bfloat16", "every rank"),
    ),
    (
        *("a rank missing from a mean in float16", (half_steps, loses_rank_1, "float16"), "DD735", []),
        "rank 1's share is missing",
    ),
    (
        *("a rank missing from a mean in bfloat16", (half_steps, loses_rank_1, "bfloat16"), "DD735", []),
        "rank 1's share is missing",
    ),
    (
        *("what bfloat16 loses within its roundings", (half_steps, loses_a_little, "bfloat16"), "DD736", []),
        *("info", "averaged over 4 ranks are off by 2%, through rounding"),
    ),
    ("a torch without GradScaler", (old_torch,), "DD738", [], "a GradScaler with bfloat16"),
    ("a backend without bfloat16", (backend_without_bfloat16,), "DD738", [], "does not reduce bfloat16"),
)
def test_a_planted_defect_is_found_and_named(ranks, scenario, code, ranks_blamed, words):
    assert_found(judge(recording(ranks.facts(*scenario))), code, ranks_blamed, words)


def test_a_scale_of_ones_own_names_the_rank(ranks):
    finding = only(judge(recording(ranks.facts(quarters_on_rank_1))), "DD731")
    assert blamed(finding) == [1]
    assert finding.evidence[0].value == 1.0


@pytest.mark.parametrize(
    ("scenario", "words"), [(old_torch_on_rank_1, "no GradScaler"), (old_gpu_on_rank_1, "does not support bfloat16.")]
)
def test_what_one_rank_lacks_leaves_nobody_waiting(ranks, scenario, words):
    finding = only(judge(recording(ranks.facts(scenario, on=(0, 1)), (0, 1))), "DD738")
    assert words in finding.evidence[0].text
