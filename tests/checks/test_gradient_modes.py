"""gradient_modes on real ranks: healthy worlds, and each mode broken in the ways that its rule names."""

import sys
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from ddp_doctor.checks.ddp import gradient_modes
from ddp_doctor.checks.ddp.gradient_modes import CHECK, modes
from ddp_doctor.model.choices import Level, Severity
from tests.checks.judged_ranks import assert_found, judge_by, only, planted, record

pytestmark = pytest.mark.ranks
EVERY = tuple(way.name for way in modes.WAYS)

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)


# Scenarios: what runs on each rank.


def thorough(ctx):
    ctx.level = Level.THOROUGH
    return gradient_modes.measure(ctx)


def without_numpy(ctx):
    with patch.dict(sys.modules, {"numpy": None}):
        return gradient_modes.measure(ctx, names=("powersgd",))


def numpy_missing_on_rank_1(ctx):
    with patch.dict(sys.modules, {"numpy": None} if ctx.rank == 1 else {}):
        return gradient_modes.measure(ctx, names=("powersgd",))


def beside_a_gpu(ctx):
    import torch

    with patch.object(torch.cuda, "is_available", lambda: True):
        return gradient_modes.measure(ctx, names=("powersgd",))


def earlier_wrappers_live_on(ctx):
    held = []

    def wrapped(context, way, module):
        held.append(gradient_modes.wrap(context, way, module))
        return held[-1]

    return gradient_modes.measure(ctx, wrapped, ("buckets", "bucket-view", "accumulation"))


def hooked(ctx, hook, *names):
    """DDP with a communication hook in place of its own average."""

    def wrapped(context, way, module):
        def pretends(state, bucket):  # torch looks at the annotations of a hook
            return hook(state, bucket)

        model = gradient_modes.wrap(context, way, module)
        model.register_comm_hook(context, pretends)
        return model

    return gradient_modes.measure(ctx, wrapped, names)


def replaced(ctx, name, hook, mode):
    """A hook of torch's that is replaced by one that does not what its name says."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    home = powerSGD_hook if name == "powerSGD_hook" else default_hooks

    def pretends(state, bucket):
        return hook(ctx, state, bucket)

    with patch.object(home, name, pretends):
        return gradient_modes.measure(ctx, names=(mode,))


def reduced(ctx: Any, buffer: Any, scale: float = 1.0) -> Any:
    """A future of the sum over the ranks, times ``scale``."""
    import torch.distributed as dist

    future = dist.all_reduce(buffer, group=ctx.group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0] * scale)


def done(buffer: Any) -> Any:
    import torch

    future: Any = torch.futures.Future()
    future.set_result(buffer)
    return future


def honest(ctx: Any, bucket: Any) -> Any:
    return reduced(ctx, bucket.buffer() / ctx.world_size)


def sums(ctx, _state, bucket):
    return reduced(ctx, bucket.buffer().clone())


def drops_rank_1(ctx: Any, bucket: Any) -> Any:
    return reduced(ctx, bucket.buffer() * (0.0 if ctx.rank == 1 else 1 / ctx.world_size))


def skips_bucket_1(ctx: Any, bucket: Any) -> Any:
    return done(bucket.buffer()) if bucket.index() == 1 else honest(ctx, bucket)


def skips_a_bucket_when_compressing(ctx, _state, bucket):
    return skips_bucket_1(ctx, bucket)


def rank_1_keeps_its_own(ctx, bucket):
    own = bucket.buffer().clone()
    return honest(ctx, bucket).then(lambda mean: own if ctx.rank == 1 else mean.value())


def rank_0_nudges(ctx, _state, bucket):
    import torch

    mean = honest(ctx, bucket)
    return mean.then(lambda one: torch.nextafter(one.value(), one.value() + 1) if ctx.rank == 0 else one.value())


def forgets_rank_1_from_the_third_step(ctx, state, bucket):
    """PowerSGD whose factors lack rank 1's part, and whose plain steps are right."""
    state.iter += bucket.is_last()
    return honest(ctx, bucket) if state.iter <= 2 else drops_rank_1(ctx, bucket)


def divides_by_the_users(ctx, bucket):
    """A mean over the ranks whose gradient is not zero."""
    import torch.distributed as dist

    users = (bucket.buffer() != 0).to(bucket.buffer().dtype)
    dist.all_reduce(users, group=ctx.group)
    return reduced(ctx, bucket.buffer() / users.clamp(min=1))


def no_sync_of(ctx, context, *names):
    """DDP whose no_sync() is ``context(ctx, model)``."""

    def wrapped(this, way, module):
        model = gradient_modes.wrap(this, way, module)
        model.no_sync = lambda: context(ctx, model)
        return model

    return gradient_modes.measure(ctx, wrapped, names or ("accumulation",))


@contextmanager
def never_ends(_ctx, model):
    """As if the last forward still stood inside no_sync()."""
    model.require_backward_grad_sync = False
    yield
    model.require_backward_grad_sync = False


@contextmanager
def forgets_the_first(ctx, model):
    """What the first micro-step accumulated is lost when the second begins, on rank 1."""
    first = model.module.weight0.grad is None
    if not first and ctx.rank == 1:
        model.zero_grad()
    model.require_backward_grad_sync = False
    yield
    model.require_backward_grad_sync = True


def without_its_switch(ctx, name):
    """DDP that is not told of the mode."""

    def wrap(this, way, module):
        return gradient_modes.wrap(this, modes.Way("", ()), module)

    return gradient_modes.measure(ctx, wrap, (name,))


def loses_the_second_use(ctx, name):
    """DDP that detaches a parameter after its first use."""

    def wrapped(this, way, module):
        model = gradient_modes.wrap(this, way, module)
        forward = model.forward

        def first_uses(uses, segment):
            known: set[int] = set()

            def once(parameter, given):
                seen = id(parameter) in known
                known.add(id(parameter))
                return segment(parameter, given * 0 if seen else given)

            return forward(uses, once)

        model.forward = first_uses
        return model

    return gradient_modes.measure(ctx, wrapped, (name,))


def checkpoints_twice(ctx):
    from torch.utils import checkpoint

    whole = checkpoint.checkpoint

    def doubled(*given, **options):
        return whole(*given, **options) + whole(*given, **options)

    with patch.object(checkpoint, "checkpoint", doubled):
        return gradient_modes.measure(ctx, names=("checkpoint",))


def after_backward(ctx, change, *names):
    """Code that does something to the gradients after each backward."""
    import torch

    seen: list[Any] = []
    backward: Any = torch.Tensor.backward

    def wrapped(this, way, module):
        seen.append(module)
        return gradient_modes.wrap(this, way, module)

    def changed(loss):
        backward(loss)
        change(ctx, seen[-1])

    with patch.object(torch.Tensor, "backward", changed):
        return gradient_modes.measure(ctx, wrapped, names)


def clones(_ctx, module):
    for parameter in module.parameters():
        parameter.grad = parameter.grad.clone()


def writes(_ctx, module):
    for parameter in module.parameters():
        parameter.grad.copy_(parameter.grad.clone())


def invents_a_gradient(_ctx, module):
    import torch

    module.weight6.grad = torch.ones_like(module.weight6)


# Healthy worlds


@pytest.mark.parametrize("on", [(1, 3), (0, 1, 2), (0, 1, 2, 3)], ids=str)
def test_healthy_ranks_give_no_finding(ranks, on):
    facts = ranks.facts(gradient_modes.probe, on=on)
    assert judge(recording(facts, on)) == []
    assert [mode.name for mode in facts[0].modes] == ["bucket-view", "accumulation", "unused"]


@pytest.mark.parametrize("on", [(0, 1), (0, 1, 2, 3)], ids=str)
def test_all_modes_are_right_on_healthy_ranks(ranks, on):
    facts = ranks.facts(thorough, on=on)
    assert judge(recording(facts, on)) == []
    assert tuple(mode.name for mode in facts[0].modes) == EVERY
    tested = [mode.name for mode in facts[0].modes if mode.not_looked is None]
    assert set(EVERY) - set(tested) <= {"bf16-compress"}  # a torch without NCCL refuses it


def test_every_step_has_the_same_name_and_detail_on_all_ranks(ranks):
    assert len({one.steps for one in ranks.run(thorough)}) == 1


def test_an_honest_hook_and_honest_code_are_healthy(ranks):
    assert judge(recording(ranks.facts(hooked, honest, "buckets", "bucket-view", "accumulation"))) == []
    assert judge(recording(ranks.facts(after_backward, writes, "bucket-view"))) == []


def test_what_cannot_be_tested_is_said_and_not_well(ranks):
    finding = only(judge(recording(ranks.facts(without_numpy))), "DD727")
    assert finding.severity is Severity.INFO
    assert "powerSGD_hook" in finding.title
    assert "numpy" in finding.evidence[0].text


def test_a_library_that_one_rank_lacks_leaves_nobody_waiting(ranks):
    facts = ranks.facts(numpy_missing_on_rank_1, on=(0, 1))
    assert only(judge(recording(facts)), "DD727").title == "Not tested: powerSGD_hook"


def test_powersgd_that_torch_ties_to_a_gpu_is_not_tried_on_cpus(ranks):
    facts = ranks.facts(beside_a_gpu, on=(0, 1))
    finding = only(judge(recording(facts)), "DD727")
    assert "these ranks are on the CPU" in finding.evidence[0].text


def test_wrappers_that_live_on_do_not_reduce_again(ranks):
    assert judge(recording(ranks.facts(earlier_wrappers_live_on, on=(0, 1)), (0, 1))) == []


# Planted defects


@planted(
    (
        *("a bucket that is not reduced", (hooked, skips_bucket_1, "buckets", "bucket-view"), "DD705", []),
        *("it is the rank's own alone", "Wrong after step 1: bucket 1: weight0, weight1"),
    ),
    (
        *("a rank that is missing from all modes", (hooked, drops_rank_1, "bucket-view", "accumulation")),
        *("DD705", [1], "rank 1's share is missing"),
    ),
    (
        *("a rank that keeps its own bucket view", (hooked, rank_1_keeps_its_own, "bucket-view"), "DD706", [1]),
        "gradient_as_bucket_view=True",
    ),
    ("gradients cloned after", (after_backward, clones, "bucket-view"), "DD725", [], "warning", "weight0"),
    (
        "a static graph that loses a use",
        (loses_the_second_use, "static-graph"),
        "DD707",
        [],
        "wrong: only the first of the parameter's 2 uses counts",
    ),
    ("a mean over the users alone", (hooked, divides_by_the_users, "unused"), "DD708", [], "mean over the"),
    (
        *("a gradient that no rank can have", (after_backward, invents_a_gradient, "unused"), "DD708", []),
        *("possible", "weight6"),
    ),
    (
        *("branches that DDP is not told of, before they hang", (without_its_switch, "unused"), "DD724", []),
        "weight1 is unused on rank 1 (node1) and rank 3 (node3)",
    ),
    (
        *("a last micro-step inside no_sync", (no_sync_of, never_ends), "DD709", []),
        *("on every rank", "it is the rank's own alone"),
    ),
    (
        "a lost micro-step",
        (no_sync_of, forgets_the_first),
        "DD709",
        [1],
        "wrong: of rank 1 only micro-steps 2 and 3 of 3 count",
    ),
    (
        "a second use that does not count",
        (loses_the_second_use, "twice"),
        "DD710",
        [],
        "wrong: only the first of the parameter's 2 uses counts",
    ),
    ("a segment that counts twice", (checkpoints_twice,), "DD720", [], "it is 2 times what it should be"),
    (
        *("a hook that forgets to divide", (replaced, "fp16_compress_hook", sums, "fp16-compress")),
        *("DD721", [], "the sum of the ranks' gradients"),
    ),
    (
        "a hook that skips a bucket",
        (replaced, "fp16_compress_hook", skips_a_bucket_when_compressing, "fp16-compress"),
        *("DD721", [], "Wrong after step 1: bucket 1: weight"),
    ),
    (
        "PowerSGD that loses a rank where it owes the mean",
        (replaced, "powerSGD_hook", forgets_rank_1_from_the_third_step, "powersgd"),
        *("DD722", [1], "rank 1's share is missing", "Wrong after step 3: bucket 0: weight0"),
    ),
    ("DDP that refuses a mode", (without_its_switch, "checkpoint-static"), "DD723", [], "on every rank"),
    (
        *("gradients that differ within rounding", (replaced, "fp16_compress_hook", rank_0_nudges, "fp16-compress")),
        *("DD726", [], "warning"),
    ),
)
def test_a_planted_defect_is_found_and_named(ranks, scenario, code, ranks_blamed, words):
    assert_found(judge(recording(ranks.facts(*scenario))), code, ranks_blamed, words)
