"""same_products: bits flipped in products of real ranks, whom the vote names, and what it leaves to nobody."""

from typing import Any
from unittest.mock import patch

import pytest

from ddp_doctor.checks.collectives import same_products
from ddp_doctor.checks.collectives.same_products import CHECK, PRODUCTS, probe
from ddp_doctor.facts.collectives import SameProductsFact
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.fact import Reading, read
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from tests.checks.judged_ranks import blamed, judge_by, only, record
from tests.rank_harness import HarnessContext, Ranks

TWO, THREE = (0, 1), (0, 1, 2)

# --- real ranks ------------------------------------------------------------------------------------------


def multiplied(ctx: HarnessContext, faulty: int | None = None, other: int | None = None, second_s: float = 0.0) -> Any:
    """The reading of one rank.

    On rank ``faulty`` one bit of every 10,000th product flips; rank ``other`` is on another CPU, which multiplies
    otherwise. ``second_s`` is what a call takes on the ranks' clock, 0 for the machine's own.
    """
    import torch

    bmm, done, passed = torch.bmm, 0, 0.0

    def planted(left: Any, right: Any, *, out: Any) -> Any:
        nonlocal done, passed
        bmm(left, right, out=out)
        for product in range(done, done + len(out)):
            if ctx.rank == faulty and product % 10_000 == 9_999:
                out[product - done].view(torch.int32)[3, 5] ^= 1 << 12
        if ctx.rank == other:
            out *= 1.5
        done, passed = done + len(out), passed + second_s
        return out

    text = ctx.cpuinfo()
    if ctx.rank == other:
        patch.object(ctx, "cpuinfo", lambda: text.replace("model\t", "model\t: 1\nold\t")).start()
    if second_s:
        patch.object(ctx, "clock", lambda: passed).start()
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
def test_a_bit_flipped_every_ten_thousandth_product_is_found_and_its_rank_named(ranks: Ranks):
    recording = of_ranks(ranks, THREE, 1)

    finding = only(judge_by(CHECK, recording), "DD640")

    assert (blamed(finding), finding.severity, finding.confidence) == ([1], Severity.ERROR, Confidence.PROVED)
    fact = facts(recording)[1]
    assert (fact.first_differing, fact.differing) == (9_999, fact.products // 10_000)
    assert "products unlike its others of the same matrices, number 9999 first" in finding.evidence[0].text


@pytest.mark.ranks
def test_of_two_ranks_that_differ_nobody_is_named(ranks: Ranks):
    finding = only(judge_by(CHECK, of_ranks(ranks, TWO, 1)), "DD641")

    assert (blamed(finding), finding.severity) == ([], Severity.ERROR)
    assert finding.title.endswith("have different products; unsure whose are wrong")


@pytest.mark.ranks
def test_healthy_ranks_have_the_same_bits_and_are_silent(ranks: Ranks):
    recording = of_ranks(ranks, THREE)

    assert judge_by(CHECK, recording) == []
    assert len({(fact.rounded, fact.exact) for fact in facts(recording)}) == 1
    assert all(fact.products >= PRODUCTS for fact in facts(recording))
    assert len({*facts(recording)[0].rounded, *facts(recording)[0].exact}) == 32
    assert {one.labels["rank"] for one in same_products.measurements(recording)} == set(THREE)


@pytest.mark.ranks
def test_a_rank_on_another_cpu_is_compared_with_nobody_and_that_is_said(ranks: Ranks):
    recording = of_ranks(ranks, (0, 1, 2, 3), None, 3)

    finding = only(judge_by(CHECK, recording), "DD642")

    assert len(facts(recording)) == 3
    assert "rank 3 (node3): no other rank has the same device and libraries" in finding.evidence[0].text
    assert not of_ranks(ranks, (0, 3), None, 3).facts(SameProductsFact)  # two kinds of one each: nothing was compared


@pytest.mark.ranks
def test_a_slow_rank_ends_in_time_with_fewer_products_and_that_is_said(ranks: Ranks):
    recording = of_ranks(ranks, THREE, None, None, 0.5)

    finding = only(judge_by(CHECK, recording), "DD642")

    assert {(fact.products, fact.seconds) for fact in facts(recording)} == {(16 * 32, 8.0)}
    assert finding.evidence[0].text.endswith("512 products in 8 s")


# --- the vote --------------------------------------------------------------------------------------------

USUAL = tuple("abcd")


def seen(rounded: tuple[str, ...] = USUAL, exact: tuple[str, ...] = ("1", "2"), **more: Any) -> SameProductsFact:
    fields: dict[str, Any] = {"alike": {"device": "cpu"}, "products": PRODUCTS, "seconds": 1.0, "device": "cpu"} | more
    return SameProductsFact(rounded=rounded, exact=exact, **fields)


RESTLESS = seen(differing=3, first_differing=9_999)
OTHER_LIBRARY = seen(tuple("wxyz"))


def judge(*ranks: SameProductsFact) -> list[Finding]:
    return judge_by(CHECK, record(CHECK, ranks))


@pytest.mark.parametrize(
    ("odd", "confidence"),
    [
        pytest.param(RESTLESS, Confidence.LIKELY, id="now and then"),
        pytest.param(seen(tuple("abcx")), Confidence.LIKELY, id="always, of one pair of matrices"),
        pytest.param(seen(exact=("1", "3")), Confidence.PROVED, id="small integers"),
        pytest.param(seen(tuple("wxyz"), ("1", "3")), Confidence.PROVED, id="all, and small integers"),
    ],
)
def test_the_odd_one_of_three_is_named_and_the_more_surely_the_less_a_library_explains(odd, confidence):
    finding = only(judge(seen(), odd, seen()), "DD640")

    assert (blamed(finding), finding.confidence) == ([1], confidence)


@pytest.mark.parametrize(
    ("ranks", "severity"),
    [
        pytest.param([seen(), seen(tuple("abcx"))], Severity.WARNING, id="two that differ"),
        pytest.param([seen(), RESTLESS], Severity.WARNING, id="one of two"),
        pytest.param([RESTLESS], Severity.WARNING, id="one without its like"),
        pytest.param([seen(), seen(tuple("abcx")), seen(tuple("abxd"))], Severity.WARNING, id="each another"),
        pytest.param([seen(), seen(), seen(tuple("abcx")), seen(tuple("abcx"))], Severity.WARNING, id="two halves"),
        pytest.param([seen(exact=("1", "3")), seen()], Severity.ERROR, id="small integers of one of two"),
        pytest.param([RESTLESS, RESTLESS, seen()], Severity.INFO, id="most are not repeatable: the library"),
        pytest.param([seen(), seen(), OTHER_LIBRARY], Severity.WARNING, id="all rounded ones: another library, maybe"),
    ],
)
def test_where_no_vote_tells_who_is_wrong_nobody_is_named(ranks, severity):
    finding = only(judge(*ranks), "DD641")

    assert (blamed(finding), finding.severity) == ([], severity)


def test_a_rank_beside_the_others_on_one_node_has_their_library_so_it_is_named():
    whole = record(CHECK, [seen(), seen(), OTHER_LIBRARY])
    on_one = tuple(reading.model_copy(update={"node": 0}) for reading in whole.readings)

    finding = only(judge_by(CHECK, whole.model_copy(update={"readings": on_one})), "DD640")

    assert (blamed(finding), finding.confidence) == ([2], Confidence.LIKELY)


def test_ranks_of_two_kinds_are_never_held_against_each_other():
    old = seen(tuple("wxyz"), ("3", "4"), alike={"device": "old cpu"})

    assert judge(seen(), old, seen(), old) == []
