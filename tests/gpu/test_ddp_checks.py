"""gradient_sync and buffers on a GPU: two ranks share it over gloo, which NCCL would refuse."""

import pytest

from ddp_doctor.checks import buffers, gradient_sync
from tests.rank_harness import Ranks

pytestmark = [pytest.mark.gpu, pytest.mark.ranks]


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2, preload=(__name__,)) as started:
        if not all(started.facts(has_gpu)):
            pytest.skip("needs an NVIDIA GPU that torch can use")
        yield started


def has_gpu(_ctx):
    import torch

    return torch.cuda.is_available()


def on_gpu(ctx, probe):
    ctx.device = "cuda:0"
    return probe(ctx)


def test_gradients_on_a_gpu_are_the_mean(ranks):
    for fact in ranks.facts(on_gpu, gradient_sync.probe):
        assert fact.step.off == fact.no_sync.off == fact.resync.off == ()


def test_buffers_on_a_gpu_are_rank_0s_and_sync_batch_norm_synchronises(ranks):
    for fact in ranks.facts(on_gpu, buffers.probe):
        assert fact.parameters_off == fact.buffers_off == fact.batch_norm_off == ()
        assert fact.sync_batch_norm_off == ()
        assert fact.sync_batch_norm_reason is None
