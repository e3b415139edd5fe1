"""same_products: bits flipped in products of real ranks, the ranks that the vote blames, and undecided votes."""

from typing import Any
from unittest.mock import patch

import pytest

from ddp_doctor.checks.collectives import same_products
from ddp_doctor.checks.collectives.same_products import CHECK, PRODUCTS, probe
from ddp_doctor.facts.collectives import SameProductsFact
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.fact import Reading, read
from ddp_doctor.model.recording import Recording
from ddp_doctor.probing.products import matrices
from tests.checks.judged_ranks import blamed, judge_by, only, record
from tests.rank_harness import HarnessContext, Ranks

TWO, THREE = (0, 1), (0, 1, 2)

# --- real ranks ------------------------------------------------------------------------------------------


def multiplied(ctx: HarnessContext, faulty: int | None = None, second_s: float = 0.0, waits: float = 0.0) -> Any:
    import torch

    bmm, done, passed = torch.bmm, 0, 0.0

    def planted(left: Any, right: Any, *, out: Any) -> Any:
        nonlocal done, passed
        bmm(left, right, out=out)
        for product in range(done, done + len(out)):
            if ctx.rank == faulty and product % 10_000 == 9_999:
                out[product - done].view(torch.int32)[3, 5] ^= 1 << 12
        done, passed = done + len(out), passed + second_s
        return out

    if second_s:
        patch.object(ctx, "clock", lambda: passed).start()
        patch.object(same_products, "queued_s", lambda machine: waits * passed).start()
        ctx.deadline = 20.0
    else:  # a busy machine gets the time that it needs
        ctx.deadline += 600
    with patch.object(torch, "bmm", planted), patch.object(same_products, "_MOST_S", 6.0 if second_s else 300.0):
        return read(CHECK.id, probe, ctx, rank=ctx.rank)


def of_ranks(ranks: Ranks, on: tuple[int, ...], *planted: Any) -> Recording:
    readings: list[Reading] = ranks.facts(multiplied, *planted, on=on)
    return record(CHECK, [], []).model_copy(update={"readings": tuple(readings)})


def facts(recording: Recording) -> list[SameProductsFact]:
    return [rank.fact for rank in recording.facts(SameProductsFact)]


@pytest.mark.ranks
def test_bit_flipped_in_one_of_10000_products_is_found_with_its_rank(ranks: Ranks):
    recording = of_ranks(ranks, THREE, 1)

    finding = only(judge_by(CHECK, recording), "DD640")

    assert (blamed(finding), finding.severity, finding.confidence) == ([1], Severity.ERROR, Confidence.PROVED)
    fact = facts(recording)[1]
    assert (fact.first_differing, fact.differing) == (9_999, fact.products // 10_000)
    assert "products unlike its others of the same matrices, number 9999 first" in finding.evidence[0].text


@pytest.mark.ranks
def test_difference_between_two_ranks_blames_neither(ranks: Ranks):
    finding = only(judge_by(CHECK, of_ranks(ranks, TWO, 1)), "DD641")

    assert (blamed(finding), finding.severity) == ([], Severity.ERROR)
    assert finding.title.endswith("products of the same matrices differ, and the faulty rank is unknown")


@pytest.mark.ranks
def test_healthy_ranks_have_the_same_bits_and_no_finding(ranks: Ranks):
    recording = of_ranks(ranks, THREE)

    assert judge_by(CHECK, recording) == []
    assert len({fact.exact for fact in facts(recording)}) == 1
    assert all(fact.products >= PRODUCTS for fact in facts(recording))
    assert len({*facts(recording)[0].exact}) == 32
    assert {one.labels["rank"] for one in same_products.measurements(recording)} == set(THREE)


@pytest.mark.parametrize("rows", [64, 512])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_products_are_exact_in_every_type_and_order_of_additions(rows, kind):
    import torch

    whole = matrices("cpu", rows)[:, :2]
    left, right = whole
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(2))

    assert torch.equal(whole.to(getattr(torch, kind)).float(), whole)
    exact = torch.bmm(left.double(), right.double())
    assert torch.equal(torch.bmm(left, right).double(), exact)
    assert torch.equal(torch.bmm(left[:, :, order], right[:, order]).double(), exact)
    assert torch.equal(
        torch.bmm(left.abs(), right.abs()).double(), torch.bmm(left.double().abs(), right.double().abs())
    )


@pytest.mark.ranks
@pytest.mark.parametrize(("waits", "seconds"), [(0.0, 8), (0.9, 16)], ids=["slow", "without a processor"])
def test_slow_rank_ends_in_time_with_fewer_products_in_the_evidence(ranks: Ranks, waits: float, seconds: int):
    recording = of_ranks(ranks, THREE, None, 0.5, waits)
    finding = only(judge_by(CHECK, recording), "DD642")
    assert {(fact.products, fact.seconds) for fact in facts(recording)} == {(2 * seconds * 32, float(seconds))}
    assert finding.evidence[0].text.endswith(f"{64 * seconds} products in {seconds} s")


def test_rank_with_a_stopped_clock_has_no_rate():
    still, usual = (
        SameProductsFact(
            alike={"type": "float32", "device": "CPU"}, exact=("1",), device="cpu", products=PRODUCTS, seconds=seconds
        )
        for seconds in (0.0, 1.0)
    )
    whole = record(CHECK, [still, usual])

    assert [one.labels["rank"] for one in same_products.measurements(whole)] == [1]
