"""ddp_modes on real ranks: healthy worlds, and each mode broken in the ways that its rules name."""

import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.checks.ddp import ddp_modes
from ddp_doctor.checks.ddp.ddp_modes import CHECK, cases
from ddp_doctor.checks.ddp.ddp_modes.rules import faults
from ddp_doctor.facts.ddp.gradients import DdpModes
from ddp_doctor.model.choices import Level
from tests.checks.judged_ranks import assert_found, judge_by, only, planted, record

pytestmark = pytest.mark.ranks
EVERY = tuple(way.name for way in cases.WAYS)
STANDARD = ("bucket-view", "accumulation", "unused", "join", "autocast-bfloat16")

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)


# Scenarios: what runs on each rank.


def thorough(ctx):
    ctx.level = Level.THOROUGH
    return ddp_modes.probe(ctx)


def modes(ctx: Any, *names: str) -> DdpModes:
    return ddp_modes.measure(ctx, names=names)


def without_numpy(ctx, on=(0, 1, 2, 3)):
    with patch.dict(sys.modules, {"numpy": None} if ctx.rank in on else {}):
        return modes(ctx, "powersgd")


def beside_a_gpu(ctx):
    import torch

    with patch.object(torch.cuda, "is_available", lambda: True):
        return modes(ctx, "powersgd")


def old_torch(ctx, on=(0, 1, 2, 3)):
    import torch

    with patch.object(torch, "amp", object() if ctx.rank in on else torch.amp):
        return modes(ctx, "autocast-bfloat16")


def old_gpu_on_rank_1(ctx):
    import torch

    def refuses(*_: Any) -> Any:
        raise RuntimeError("Current CUDA Device does not support bfloat16.\nPlease switch dtype to float16.")

    with patch.object(torch, "autocast", refuses if ctx.rank == 1 else torch.autocast):
        return modes(ctx, "autocast-bfloat16")


def backend_without_bfloat16(ctx):
    import torch.distributed as dist

    def refuses(tensor, **_):
        raise RuntimeError(f"Invalid scalar type {tensor.dtype}")

    with patch.object(dist, "all_reduce", refuses):
        return modes(ctx, "half-bfloat16")


def earlier_wrappers_live_on(ctx):
    held = []

    def wrapped(context, way, module):
        held.append(ddp_modes.wrap(context, way, module))
        return held[-1]

    return ddp_modes.measure(ctx, wrapped, ("buckets", "bucket-view", "accumulation"))


def hooked(ctx, hook, *names):
    def wrapped(context, way, module):
        def pretends(_state, bucket):  # torch looks at the annotations of a hook
            return hook(context, bucket)

        model = ddp_modes.wrap(context, way, module)
        model.register_comm_hook(None, pretends)
        return model

    return ddp_modes.measure(ctx, wrapped, names)


def replaced(ctx, name, hook, mode):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def pretends(state, bucket):
        if name == "powerSGD_hook":
            state.iter += bucket.is_last()
            return (honest if state.iter <= 2 else hook)(ctx, bucket)
        return hook(ctx, bucket)

    with patch.object(powerSGD_hook if name == "powerSGD_hook" else default_hooks, name, pretends):
        return modes(ctx, mode)


def reduced(ctx: Any, buffer: Any) -> Any:
    import torch.distributed as dist

    future = dist.all_reduce(buffer, group=ctx.group, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


def done(buffer: Any) -> Any:
    import torch

    future: Any = torch.futures.Future()
    future.set_result(buffer)
    return future


def honest(ctx: Any, bucket: Any) -> Any:
    return reduced(ctx, bucket.buffer() / ctx.world_size)


def sums(ctx: Any, bucket: Any) -> Any:
    return reduced(ctx, bucket.buffer().clone())


def divides_last(ctx, bucket):
    return sums(ctx, bucket).then(lambda total: total.value() / ctx.world_size)


def drops_rank_1(ctx: Any, bucket: Any) -> Any:
    return reduced(ctx, bucket.buffer() * (0.0 if ctx.rank == 1 else 1 / ctx.world_size))


def skips_bucket_1(ctx: Any, bucket: Any) -> Any:
    return done(bucket.buffer()) if bucket.index() == 1 else honest(ctx, bucket)


def rank_1_keeps_its_own(ctx, bucket):
    own = bucket.buffer().clone()
    return honest(ctx, bucket).then(lambda mean: own if ctx.rank == 1 else mean.value())


def rank_0_nudges(ctx, bucket):
    import torch

    mean = honest(ctx, bucket)
    return mean.then(lambda one: torch.nextafter(one.value(), one.value() + 1) if ctx.rank == 0 else one.value())


def divides_by_the_users(ctx, bucket):
    import torch.distributed as dist

    users = (bucket.buffer() != 0).to(bucket.buffer().dtype)
    dist.all_reduce(users, group=ctx.group)
    return reduced(ctx, bucket.buffer() / users.clamp(min=1))


def removes_infinities(ctx, bucket):
    return reduced(ctx, bucket.buffer().nan_to_num(posinf=0.0) / ctx.world_size)


def keeps_infinities_to_itself(ctx, bucket):
    own = bucket.buffer().clone()
    finite = bool(own.isfinite().all())
    mean = reduced(ctx, (own if finite else own.new_zeros(own.shape)) / ctx.world_size)
    return mean.then(lambda done: done.value() if finite else own)


def no_sync_of(ctx, context):
    """DDP whose no_sync() is ``context(ctx, model)``."""

    def wrapped(this, way, module):
        model = ddp_modes.wrap(this, way, module)
        model.no_sync = lambda: context(ctx, model)
        return model

    return ddp_modes.measure(ctx, wrapped, ("accumulation",))


@contextmanager
def never_ends(_ctx, model):
    model.require_backward_grad_sync = False
    yield
    model.require_backward_grad_sync = False


@contextmanager
def forgets_the_first(ctx, model):
    first = model.module.weight0.grad is None
    if not first and ctx.rank == 1:
        model.zero_grad()
    model.require_backward_grad_sync = False
    yield
    model.require_backward_grad_sync = True


def without_its_switch(ctx, name):
    def wrap(this, _way, module):
        return ddp_modes.wrap(this, cases.Way("", "", ()), module)

    return ddp_modes.measure(ctx, wrap, (name,))


def loses_the_second_use(ctx, name):
    def wrapped(this, way, module):
        model = ddp_modes.wrap(this, way, module)
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

    return ddp_modes.measure(ctx, wrapped, (name,))


def checkpoints_twice(ctx):
    from torch.utils import checkpoint

    whole = checkpoint.checkpoint

    def doubled(*given, **options):
        return whole(*given, **options) + whole(*given, **options)

    with patch.object(checkpoint, "checkpoint", doubled):
        return modes(ctx, "checkpoint")


def invents_a_gradient(ctx):
    import torch

    seen: list[Any] = []
    backward: Any = torch.Tensor.backward

    def wrapped(this, way, module):
        seen.append(module)
        return ddp_modes.wrap(this, way, module)

    def changed(loss):
        backward(loss)
        seen[-1].weight6.grad = torch.ones_like(seen[-1].weight6)

    with patch.object(torch.Tensor, "backward", changed):
        return ddp_modes.measure(ctx, wrapped, ("unused",))


def divides_by_those_left(ctx):
    from torch.nn.parallel import DistributedDataParallel

    stock: Any = DistributedDataParallel.join
    with patch.object(DistributedDataParallel, "join", lambda model: stock(model, divide_by_initial_world_size=False)):
        return modes(ctx, "join")


def scaled(ctx: Any, backoff: float) -> DdpModes:
    import torch

    with patch.object(torch.amp, "GradScaler", partial(torch.amp.GradScaler, backoff_factor=backoff)):
        return modes(ctx, "autocast-bfloat16")


def quarters_on_rank_1(ctx):
    return scaled(ctx, 0.25 if ctx.rank == 1 else 0.5)


def never_backs_off(ctx):
    return scaled(ctx, 1.0 - 1e-9)


def with_sampler(ctx: Any, make: Callable[[Any, Any], Any]) -> Any:
    from torch.utils.data import distributed

    with patch.object(distributed, "DistributedSampler", make(ctx, distributed.DistributedSampler)):
        return ddp_modes.probe(ctx)


class Planted:
    """torch's sampler, but for the indices it yields and for what it makes of ``set_epoch``."""

    def __init__(self, inner: Any, indices: Callable[[Any], Any] = list, deaf: bool = False) -> None:
        self.inner, self._indices, self._deaf = inner, indices, deaf

    def __iter__(self) -> Any:
        return iter(self._indices(self.inner))

    def set_epoch(self, epoch: int) -> None:
        if not self._deaf:
            self.inner.set_epoch(epoch)


def of_another_rank(_ctx: Any, stock: Any) -> Any:
    return lambda data, rank, **given: stock(data, rank=rank % 2, **given)


def seeded_by_rank(ctx: Any, stock: Any) -> Any:
    return lambda data, **given: stock(data, seed=ctx.rank, **given)


def one_sample_more(ctx: Any, stock: Any) -> Any:
    return lambda data, **given: stock(range(len(data) + (ctx.rank == 2)), **given)


def deaf_on_rank_1(ctx: Any, stock: Any) -> Any:
    return lambda data, **given: Planted(stock(data, **given), deaf=ctx.rank == 1)


def short_on_rank_3(ctx: Any, stock: Any) -> Any:
    end = -1 if ctx.rank == 3 else None
    return lambda data, **given: Planted(stock(data, **given), lambda sampler: list(sampler)[:end])


def beyond_the_end_on_rank_0(ctx: Any, stock: Any) -> Any:
    more = 1000 * (ctx.rank == 0)
    return lambda data, **given: Planted(stock(data, **given), lambda sampler: [i + more for i in sampler])


def other_numbers_on_rank_1(ctx):
    import torch

    stock: Any = torch.randperm

    def turned(*given: Any, **named: Any) -> Any:
        return stock(*given, **named).flip(0)

    with patch.object(torch, "randperm", turned if ctx.rank == 1 else stock):
        return ddp_modes.probe(ctx)


def seeded_by_the_environment(ctx, seed):
    import torch

    customize: Any = type(sys)("sitecustomize")
    customize.__file__ = "/opt/site/sitecustomize.py"
    with torch.random.fork_rng(devices=[]), patch.dict(sys.modules, {"sitecustomize": customize}):
        torch.manual_seed(seed(ctx.rank))
        return ddp_modes.probe(ctx)


def forty_two(_rank):
    return 42


def by_rank(rank):
    return 42 + rank


# Healthy worlds


@pytest.mark.parametrize("on", [(1, 3), (0, 1, 2), (0, 1, 2, 3)], ids=str)
def test_healthy_ranks_give_no_finding(ranks, on):
    facts = ranks.facts(ddp_modes.probe, on=on)
    assert judge(recording(facts, on)) == []
    assert tuple(mode.name for mode in facts[0].modes) == STANDARD
    assert [step.stepped for step in facts[0].modes[-1].scaled] == [True, False, True]


@pytest.mark.parametrize("on", [(0, 1), (0, 1, 2, 3)], ids=str)
def test_all_modes_are_right_on_healthy_ranks(ranks, on):
    facts = ranks.facts(thorough, on=on)
    assert judge(recording(facts, on)) == []
    assert tuple(mode.name for mode in facts[0].modes) == EVERY
    tested = [mode.name for mode in facts[0].modes if mode.not_looked is None]
    assert set(EVERY) - set(tested) <= {"bf16-compress"}  # a torch without NCCL refuses it


def test_every_step_has_the_same_name_and_detail_on_all_ranks(ranks):
    assert len({one.steps for one in ranks.run(thorough)}) == 1


def test_an_honest_hook_is_healthy(ranks):
    every = ("buckets", "bucket-view", "accumulation", "autocast-bfloat16", "half-float16")
    assert judge(recording(ranks.facts(hooked, honest, *every))) == []


def test_an_environment_that_seeds_each_rank_on_its_own_is_healthy(ranks):
    assert judge(recording(ranks.facts(seeded_by_the_environment, by_rank))) == []


def test_wrappers_that_live_on_do_not_reduce_again(ranks):
    assert judge(recording(ranks.facts(earlier_wrappers_live_on, on=(0, 1)), (0, 1))) == []


def test_what_all_ranks_must_have_shown_is_not_judged_without_one_of_them(ranks):
    """The lost rank may be that with the missing samples, or with the infinite gradient."""
    assert judge(recording(ranks.facts(with_sampler, seeded_by_rank)[:3])) == []
    assert judge(recording(ranks.facts(hooked, keeps_infinities_to_itself, "autocast-bfloat16")[:3])) == []


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ((without_numpy, (1,)), "numpy"),
        ((old_torch, (1,)), "GradScaler"),
        ((old_gpu_on_rank_1,), "does not support bfloat16."),
    ],
    ids=["numpy", "GradScaler", "bfloat16"],
)
def test_what_one_rank_lacks_leaves_nobody_waiting(ranks, scenario, words):
    finding = only(judge(recording(ranks.facts(*scenario, on=(0, 1)), (0, 1))), "DD727")
    assert words in finding.evidence[0].text


# Planted defects. The codes of rules that have gone stand before those that each was planted for.

_ALL_PLAIN = ("buckets", "bucket-view", "accumulation")


@planted(
    (  # DD705
        *("a bucket that is not reduced", (hooked, skips_bucket_1, "buckets", "bucket-view"), "DD718", []),
        *("several buckets", "it is the local gradient", "Wrong in ddp-doctor's own model: weight0, weight1"),
    ),
    ("a rank that is missing from all modes", (hooked, drops_rank_1, *_ALL_PLAIN), "DD718", [1], "rank 1's share is"),
    (  # DD706
        *("a rank that keeps its own bucket view", (hooked, rank_1_keeps_its_own, "bucket-view"), "DD718", [1]),
        "With gradient_as_bucket_view=True, the gradient on rank 1 (node1) is wrong",
    ),
    (  # DD707
        *("a static graph that loses a use", (loses_the_second_use, "static-graph"), "DD718", []),
        *("static_graph=True", "it is 0.3333 times what it must be"),
    ),
    # DD708
    ("a mean over the users alone", (hooked, divides_by_the_users, "unused"), "DD718", [], "find_unused_parameters"),
    ("a gradient that no rank can have", (invents_a_gradient,), "DD718", [], "likely", "weight6"),
    # DD709
    (
        "a last micro-step inside no_sync",
        (no_sync_of, never_ends),
        "DD718",
        [],
        "no_sync()",
        "it is the local gradient",
    ),
    ("a lost micro-step", (no_sync_of, forgets_the_first), "DD718", [1], "rank 1's share counts 0.8571 times"),
    ("a second use that does not count", (loses_the_second_use, "twice"), "DD718", [], "used twice"),  # DD710
    ("a segment that counts twice", (checkpoints_twice,), "DD718", [], "it is 2 times what it must be"),  # DD720
    (  # DD721
        *("a hook that forgets to divide", (replaced, "fp16_compress_hook", sums, "fp16-compress")),
        *("DD718", [], "the sum of the ranks' gradients"),
    ),
    (
        *("a hook that skips a bucket", (replaced, "fp16_compress_hook", skips_bucket_1, "fp16-compress")),
        *("DD718", [], "Wrong in ddp-doctor's own model: weight0, weight1"),
    ),
    (  # DD722
        *("PowerSGD that loses a rank", (replaced, "powerSGD_hook", drops_rank_1, "powersgd")),
        *("DD718", [1], "rank 1's share is missing", "after step 3"),
    ),
    ("DDP that refuses a mode", (without_its_switch, "checkpoint-static"), "DD723", [], "on every rank"),
    (
        "branches that DDP is not told of",
        (without_its_switch, "unused"),
        "DD723",
        [],
        "find_unused_parameters",
    ),  # DD724
    (
        *("gradients that differ within rounding", (replaced, "fp16_compress_hook", rank_0_nudges, "fp16-compress")),
        *("DD726", [], "error"),
    ),
    ("a torch without numpy", (without_numpy,), "DD727", [], "info", "powerSGD_hook", "numpy"),
    ("PowerSGD beside a GPU", (beside_a_gpu,), "DD727", [], "these ranks are on the CPU"),
    ("a torch without GradScaler", (old_torch,), "DD727", [], "autocast to bfloat16"),  # DD738
    ("a backend without bfloat16", (backend_without_bfloat16,), "DD727", [], "does not reduce bfloat16"),
    (  # the three that stepped are no minority
        *("a rank that skips alone", (hooked, keeps_infinities_to_itself, "autocast-bfloat16"), "DD730", []),
        *("rank 3 (node3) skipped the step", "Rank 3's gradient is infinite"),
    ),
    # DD731
    ("a scale of a rank's own", (quarters_on_rank_1,), "DD730", [1], "on rank 1 (node1) then has a wrong scale"),
    # DD732
    *(
        (f"infinities removed in {mode}", (hooked, removes_infinities, mode), "DD730", [], "no rank skips the step")
        for mode in ("autocast-bfloat16", "autocast-float16")
    ),
    ("a scale that does not back off", (never_backs_off,), "DD730", [], "on every rank then has a wrong scale"),
    ("a sum under autocast", (hooked, sums, "autocast-bfloat16"), "DD718", [], "the sum of the ranks'"),  # DD733
    *(  # DD734, DD735
        row
        for dtype in ("float16", "bfloat16")
        for row in (
            (f"a sum before the division in {dtype}", (hooked, divides_last, f"half-{dtype}"), "DD718", [], "finite"),
            (f"a rank missing in {dtype}", (hooked, drops_rank_1, f"half-{dtype}"), "DD718", [1], "share is missing"),
        )
    ),
    # DD737
    ("weights that drift in their last bits", (hooked, rank_0_nudges, "autocast-bfloat16"), "DD726", [], "error"),
    (
        "a sampler of another rank",
        (with_sampler, of_another_rank),
        "DD753",
        [],
        "more than once",
        "on no rank",
    ),  # DD750
    ("a data set of another length", (with_sampler, one_sample_more), "DD753", [2], "node2"),  # DD751
    ("samplers of other seeds", (with_sampler, seeded_by_rank), "DD753", [], "more than once"),  # DD752
    ("one rank that misses set_epoch", (with_sampler, deaf_on_rank_1), "DD753", [], "in epoch 1"),  # DD754
    (
        "a rank with fewer steps",
        (with_sampler, short_on_rank_3),
        "DD753",
        [3],
        "shares of fewer samples than 4",
    ),  # DD755
    ("indices beyond the data set", (with_sampler, beyond_the_end_on_rank_0), "DD753", [0], "beyond its end"),
    (
        "join that divides by those left",
        (divides_by_those_left,),
        "DD718",
        [],
        "join()",
        "share counts 4 times",
    ),  # DD756
    ("other random numbers on a rank", (other_numbers_on_rank_1,), "DD753", [], "more than once"),  # DD757
    (
        *("an environment that seeds all ranks alike", (seeded_by_the_environment, forty_two), "DD759", []),
        *("warning", "/opt/site/sitecustomize.py"),
    ),
)
def test_a_planted_defect_is_found_and_named(ranks, scenario, code, ranks_blamed, words):
    assert_found(judge(recording(ranks.facts(*scenario))), code, ranks_blamed, words)


def test_after_an_error_no_further_mode_is_tried_and_that_is_said(ranks):
    facts = ranks.facts(hooked, raises_on_rank_1, "buckets", "bucket-view", on=(0, 1))
    failed, not_tested = judge(recording(facts, (0, 1)))
    assert (failed.code, not_tested.code) == ("DD723", "DD727")
    assert "gradient_as_bucket_view=True" in not_tested.title


def raises_on_rank_1(ctx, bucket):
    raise RuntimeError("no such hook")


# Pure judgment


@given(ranks=st.integers(1, 9), length=st.integers(1, 60), drop_last=st.booleans(), epoch=st.integers(0, 3))
def test_torch_s_own_sampler_is_right_for_every_length(ranks, length, drop_last, epoch):
    from torch.utils.data import distributed

    sampler_of: Any = distributed.DistributedSampler  # which asks only for a length
    held = {}
    for rank in range(ranks):
        sampler = sampler_of(range(length), ranks, rank, drop_last=drop_last)
        sampler.set_epoch(epoch)
        held[rank] = list(sampler)

    assert faults(held, length, drop_last) == {}


@given(
    shares=st.lists(st.lists(st.integers(-3, 12), max_size=6), min_size=1, max_size=4),
    length=st.integers(0, 10),
    drop_last=st.booleans(),
)
def test_what_is_judged_right_covers_the_data_set(shares, length, drop_last):
    if not faults(dict(enumerate(shares)), length, drop_last):
        held = [index for indices in shares for index in indices]
        assert set(held) <= set(range(length))
        assert len(set(range(length)) - set(held)) < len(shares)
        assert len(held) - len(set(held)) < len(shares)
