"""The checks of DDP on a GPU: two ranks share it over gloo, which NCCL would refuse."""

from typing import Any

import pytest

from ddp_doctor.checks.ddp import buffers, gradient_sync, initial_state, step_time
from ddp_doctor.knowledge.gpu.gpu_speed import MOST_BYTES
from ddp_doctor.model.choices import Level, Severity
from tests.checks.judged_ranks import judge_by, record
from tests.rank_harness import Ranks

pytestmark = [pytest.mark.gpu, pytest.mark.ranks]
PAIR = (0, 1)


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2, preload=(__name__,)) as started:
        if not all(started.facts(has_gpu)):
            pytest.skip("needs an NVIDIA GPU that torch can use")
        yield started


def has_gpu(_ctx):
    import torch

    return torch.cuda.is_available()


def on_gpu(ctx: Any, probe: Any) -> Any:
    ctx.device, ctx.level, ctx.gpu_memory_bytes = "cuda:0", Level.THOROUGH, MOST_BYTES
    return probe(ctx)


def in_tf32(ctx: Any, probe: Any) -> Any:
    """Run on the GPU with TF32, as in NVIDIA's containers (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1)."""
    import torch

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return on_gpu(ctx, probe)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_gradients_on_a_gpu_are_the_mean(ranks):
    for fact in ranks.facts(on_gpu, gradient_sync.probe):
        assert fact.step.off == fact.no_sync.off == fact.resync.off == ()


def test_buffers_on_a_gpu_come_from_rank_0_and_sync_batch_norm_synchronizes(ranks):
    facts = ranks.facts(on_gpu, buffers.probe)
    for fact in facts:
        assert fact.parameters_off == fact.buffers_off == fact.batch_norm_off == ()
        assert fact.sync_batch_norm_off == fact.sync_normalised_off == ()
        assert fact.sync_batch_norm_reason is None
    assert judge_by(buffers.CHECK, record(buffers.CHECK, facts, PAIR)) == []


@pytest.mark.parametrize("way", [on_gpu, in_tf32])
def test_healthy_gpu_has_no_finding(ranks, way):
    facts = ranks.facts(way, initial_state.probe)
    assert judge_by(initial_state.CHECK, record(initial_state.CHECK, facts, PAIR)) == []


def test_step_on_a_gpu_is_split_into_its_parts(ranks):
    """The numbers mean nothing, for the ranks share the GPU and gloo copies; the events must be in order."""
    facts = ranks.facts(on_gpu, step_time.probe)
    for fact in facts:
        assert fact.device == "cuda:0"
        assert fact.on_cpu_share is None
        assert all(one.compute_s > 0 and one.step_s > 0 for one in fact.rounds)
        assert fact.buckets is not None
        assert fact.buckets.compute_s > 0
        if fact.profile is not None:
            assert not any(name.startswith("aten::") for name in fact.profile.operations)
    found = judge_by(step_time.CHECK, record(step_time.CHECK, facts, PAIR))
    assert all(one.severity is Severity.INFO for one in found), found
