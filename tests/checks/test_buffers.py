"""buffers on real ranks: healthy worlds, and every rule fired by a sabotaged DDP."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest import mock

import pytest

from ddp_doctor.checks.ddp import buffers
from ddp_doctor.checks.ddp.buffers import CHECK
from ddp_doctor.facts.ddp.model_state import Buffers
from ddp_doctor.model.choices import Level
from tests.checks.judged_ranks import assert_found, blamed, judge_by, only, planted, record

pytestmark = pytest.mark.ranks

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)


# Scenarios: the code of each rank.


def after_forward(module: Any, change: Callable[[Any], object]) -> None:
    """Let ``change(module)`` run after each forward; its result is not the forward's."""

    def hook(*_: object) -> None:
        change(module)

    module.register_forward_hook(hook)


def wrapped(ctx: Any, module: Any = None, **options: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    module = buffers.stamped_model(ctx) if module is None else module
    return DistributedDataParallel(module, process_group=ctx.group, **options)


def never_broadcasts(ctx):
    return buffers.measure(ctx, wrapped(ctx, broadcast_buffers=False))


def stamps_again_in_forward(ctx, rank):
    model = buffers.wrap(ctx, buffers.stamped_model(ctx))
    if ctx.rank == rank:
        after_forward(model.module, lambda module: module.float_stamp.fill_(ctx.group_rank + 1.0))
    return buffers.measure(ctx, model)


def reassigns_a_buffer(ctx):
    import torch

    model = buffers.wrap(ctx, buffers.stamped_model(ctx))
    if ctx.rank == 1:
        model.module.float_stamp = torch.full((500,), 7.0)
    return buffers.measure(ctx, model)


def broadcasts_from_rank_2(ctx):
    model = buffers.wrap(ctx, buffers.stamped_model(ctx))
    broadcast = model._sync_module_buffers
    model._sync_module_buffers = lambda authoritative_rank: broadcast(2)
    return buffers.measure(ctx, model)


def statistics_alone_stray(ctx):
    """Rank 1's running variance is not what rank 0's makes of its batch in the second forward."""
    model = buffers.wrap(ctx, buffers.stamped_model(ctx))
    forwards = iter([0.0, 1.0])
    if ctx.rank == 1:
        after_forward(model.module.norm, lambda norm: norm.running_var.add_(next(forwards)))
    return buffers.measure(ctx, model)


def never_starts_equal(ctx):
    return buffers.measure(ctx, wrapped(ctx, init_sync=False))


def loses_its_weights(ctx):
    import torch

    model = buffers.wrap(ctx, buffers.stamped_model(ctx))
    if ctx.rank == 3:
        with torch.no_grad():
            model.module.weight[17] = float("nan")
    return buffers.measure(ctx, model)


def computes_wrong_statistics(ctx, on):
    model = buffers.wrap(ctx, buffers.stamped_model(ctx))
    if ctx.rank in on:
        after_forward(model.module.norm, lambda norm: norm.running_mean.mul_(1.001))
    return buffers.measure(ctx, model)


def quick_probe(ctx):
    ctx.level = Level.QUICK
    return buffers.probe(ctx)


def probe_with(ctx: Any, method: str, replaced: Any, on: tuple[int, ...] = (0, 1, 2, 3)) -> Buffers:
    """Run the probe with a torch whose method of DDP is replaced on these ranks."""
    where = f"torch.nn.parallel.DistributedDataParallel.{method}"
    with mock.patch(where, replaced) if ctx.rank in on else nullcontext():
        return buffers.probe(ctx)


def always_broadcasts(ctx):
    return probe_with(ctx, "will_sync_module_buffers", lambda _self: True)


def loses_sight_of_new_buffers(ctx, on):
    """Probe a DDP that lists its buffers once, as torch did before issue 63916."""
    from torch.nn.parallel import DistributedDataParallel

    listed: Any = DistributedDataParallel._assign_modules_buffers

    def once(self: Any) -> None:
        if not hasattr(self, "modules_buffers"):
            listed(self)

    return probe_with(ctx, "_assign_modules_buffers", once, on)


def overwrites_its_own_buffer(ctx, rank):
    stamped_model = buffers.stamped_model

    def model(given: Any) -> Any:
        module = stamped_model(given)
        if given.rank == rank:
            after_forward(module, lambda one: one.float_stamp.fill_(1.0))
        return module

    with mock.patch("ddp_doctor.checks.ddp.buffers.stamped_model", model):
        return buffers.probe(ctx)


def normalises_wrongly(ctx, on):
    model = buffers.wrap(ctx, buffers.stamped_model(ctx))
    if ctx.rank in on:
        model.module.norm.register_forward_hook(lambda _norm, _given, made: made * 1.001)
    return buffers.measure(ctx, model)


def synchronises_statistics_alone(ctx):
    """A SyncBatchNorm whose running statistics are right, and whose outputs are the rank's own."""
    module = synchronised_model(ctx)
    module.norm.register_forward_hook(
        lambda _norm, given, _made: (given[0] - given[0].mean(0)) / (given[0].var(0, unbiased=False) + 1e-5).sqrt()
    )
    return module


def synchronised_model(ctx: Any) -> Any:
    """The probe's model with a SyncBatchNorm for the CPU, which torch does not have: real all-reduces."""
    import torch
    import torch.distributed as dist

    class SyncNorm(torch.nn.BatchNorm1d):
        def forward(self, given):
            sums = torch.stack([torch.full((3,), float(len(given))), given.sum(0), given.square().sum(0)])
            dist.all_reduce(sums, group=ctx.group)
            count, mean = sums[0], sums[1] / sums[0]
            unbiased = (sums[2] / count - mean.square()) * count / (count - 1)
            running: Any = self
            running.running_mean.lerp_(mean, 0.5)
            running.running_var.lerp_(unbiased, 0.5)
            return (given - mean) / (sums[2] / count - mean.square() + 1e-5).sqrt()

    module = buffers.stamped_model(ctx)
    module.norm = SyncNorm(3)
    return module


def sync_batch_norm(ctx, module_of, on=()):
    """Run the probe's test for GPUs; ranks ``on`` then use only their own batch."""
    fact = buffers.measure(ctx, buffers.wrap(ctx, buffers.stamped_model(ctx)))
    model = buffers.wrap(ctx, module_of(ctx))
    if ctx.rank in on:
        model.module.norm.register_forward_hook(use_own_batch)
    return fact.model_copy(update=buffers.measure_sync_batch_norm(ctx, model))


def use_own_batch(norm, args, _result):
    norm.running_mean.copy_(args[0].mean(0) / 2)
    norm.running_var.copy_(0.5 + args[0].var(0) / 2)


# Healthy worlds


@pytest.mark.parametrize("on", [(0,), (1, 3), (0, 1, 2), (0, 1, 2, 3)], ids=str)
def test_healthy_ranks_have_no_finding(ranks, on):
    facts = ranks.facts(buffers.probe, on=on)
    assert judge(recording(facts, on)) == []
    assert {fact.source_rank for fact in facts} == {on[0]}


def test_sync_batch_norm_on_a_cpu_is_reported_as_untested(ranks):
    for fact in ranks.facts(buffers.probe):
        assert fact.sync_batch_norm_off is None
        assert "accelerators only" in (fact.sync_batch_norm_reason or "")


def test_every_step_has_the_same_name_and_detail_on_all_ranks(ranks):
    results = ranks.run(buffers.probe)
    assert len({one.steps for one in results}) == 1
    names = [name for name, _ in results[0].steps]
    assert names[:3] == ["ddp_construct", "forward", "forward"]
    assert set(names) == {"ddp_construct", "forward"}


def test_quick_run_tests_only_the_defaults_of_ddp(ranks):
    for fact in ranks.facts(quick_probe):
        assert (fact.kept_off, fact.reassigned_off) == (None, None)


def test_reassigned_buffer_is_followed_by_ddp(ranks):
    assert judge(recording(ranks.facts(reassigns_a_buffer))) == []


def test_sync_batch_norm_that_synchronizes_is_healthy(ranks):
    facts = ranks.facts(sync_batch_norm, synchronised_model)
    assert all(fact.sync_batch_norm_off == () for fact in facts)
    assert judge(recording(facts)) == []


# Sabotage


def on_the_others(what: str, how: str) -> str:
    return f"{what} on rank 1 (node1), rank 2 (node2) and rank 3 (node3) {how}"


@planted(
    (
        *("buffers that are never broadcast", (never_broadcasts,), "DD711", []),
        on_the_others("buffers", "differ from rank 0's: each rank kept its own values"),
    ),
    ("rank 1 with its own buffer", (stamps_again_in_forward, 1), "DD711", [1], "the rank kept its own", "float_stamp"),
    ("rank 3 with its own buffer", (stamps_again_in_forward, 3), "DD711", [3], "(node3)", "float_stamp"),
    (*("statistics that stray in the second forward", (statistics_alone_stray,), "DD711", [1]), "norm.running_var"),
    (
        *("parameters that are never broadcast", (never_starts_equal,), "DD712", []),
        on_the_others("parameters", "differ from rank 0's: "),
    ),
    ("wrong statistics of a rank", (computes_wrong_statistics, (2,)), "DD719", [2]),
    ("wrong statistics on all ranks", (computes_wrong_statistics, (0, 1, 2, 3)), "DD719", []),
    (
        *("plain BatchNorm in place of SyncBatchNorm", (sync_batch_norm, buffers.stamped_model), "DD719", []),
        "every rank are wrong: each rank kept its own values",
    ),
    ("one rank outside SyncBatchNorm", (sync_batch_norm, synchronised_model, (2,)), "DD719", [2]),
    (
        *("buffers that are broadcast though it is off", (always_broadcasts,), "DD711", []),
        *(
            on_the_others("Without buffer broadcast, buffers", "are overwritten: they hold rank 0's values"),
            "float_stamp, int_stamp",
        ),
    ),
    ("rank 1 that loses its own buffer", (overwrites_its_own_buffer, 1), "DD711", [1], "float_stamp"),
    ("rank 3 that loses its own buffer", (overwrites_its_own_buffer, 3), "DD711", [3], "float_stamp"),
    (
        *("a DDP that loses sight of new buffers", (loses_sight_of_new_buffers, (0, 1, 2, 3)), "DD711", []),
        *("each rank kept its own values", "float_stamp"),
    ),
    ("a rank that loses sight of a new buffer", (loses_sight_of_new_buffers, (2,)), "DD711", [2]),
    ("a rank that normalizes wrongly", (normalises_wrongly, (2,)), "DD719", [2], "BatchNorm outputs on "),
    (
        "statistics that synchronize without the outputs",
        (sync_batch_norm, synchronises_statistics_alone),
        *("DD719", [], "SyncBatchNorm outputs on every rank are wrong: each rank kept its own values"),
    ),
)
def test_injected_defect_is_reported(ranks, scenario, code, ranks_blamed, words):
    assert_found(judge(recording(ranks.facts(*scenario))), code, ranks_blamed, words)


def test_buffers_of_another_rank_are_reported(ranks):
    findings = judge(recording(ranks.facts(broadcasts_from_rank_2)))
    assert {finding.code for finding in findings} == {"DD711"}
    assert "rank 2's" in findings[0].title
    assert all(blamed(finding) == [] for finding in findings)


def test_smaller_world_is_compared_with_its_own_first_rank(ranks):
    on = (1, 2, 3)
    finding = only(judge(recording(ranks.facts(never_starts_equal, on=on), on)), "DD712")
    assert "parameters on rank 2 (node2) and rank 3 (node3) differ from rank 1's: " in finding.title
    assert finding.evidence[0].expected_from == "rank 1's, broadcast by DDP"


def test_nan_weight_identifies_its_rank(ranks):
    finding = only(judge(recording(ranks.facts(loses_its_weights))), "DD712")
    assert blamed(finding) == [3]
    assert finding.evidence[0].value is None


def test_wrong_statistics_of_one_of_two_ranks_identify_it(ranks):
    facts = ranks.facts(computes_wrong_statistics, (1,), on=(0, 1))
    assert blamed(only(judge(recording(facts)), "DD719")) == [1]
