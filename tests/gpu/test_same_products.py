"""Products of the same matrices on real GPUs: the same bits every time, and a bit flipped on purpose is seen."""

from pathlib import Path
from unittest.mock import patch

import pytest

from ddp_doctor.checks.collectives.same_products import PRODUCTS, probe
from ddp_doctor.facts.collectives import SameProductsFact
from ddp_doctor.model.fact import Skip
from tests.gpu import runs
from tests.rank_harness import HarnessContext

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def lone() -> HarnessContext:
    return HarnessContext(0, 0, 1, (0,), local_rank=0, group=None, device="cuda:0", gpu_memory_bytes=384 << 20)


def test_every_product_of_the_same_matrices_has_the_same_bits_and_they_are_many():
    first, second = probe(lone()), probe(lone())

    assert first.differing == second.differing == 0
    assert first.products >= PRODUCTS
    assert first.exact == second.exact
    assert len({*first.exact}) == 32


def test_one_flipped_bit_of_one_product_is_seen():
    import torch

    bmm, calls = torch.bmm, 0

    def planted(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        bmm(left, right, out=out)
        if calls == 3:
            out[17].view(torch.int32)[5, 7] ^= 1 << 3
        calls += 1
        return out

    with patch.object(torch, "bmm", planted):
        fact = probe(lone())

    assert (fact.differing, fact.first_differing) == (1, 3 * 32 + 17)


def test_a_gpu_without_room_skips():
    ctx = lone()
    ctx.gpu_memory_bytes = 1 << 20
    with pytest.raises(Skip, match="too little memory"):
        probe(ctx)


def test_gpus_of_one_healthy_machine_compute_the_same(tmp_path: Path):
    outcome = runs.run(tmp_path, *runs.only("same_products"))

    assert not outcome.codes() & {"DD640", "DD641"}
    for rank in outcome.recording.facts(SameProductsFact):
        assert rank.fact.differing == 0
