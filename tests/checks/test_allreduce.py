"""all-reduce: whom wrong sums name, whom they do not, and what the sweep leaves untested."""

from typing import Any

import pytest

from ddp_doctor.checks.collectives import allreduce
from ddp_doctor.checks.collectives.allreduce import CHECK
from ddp_doctor.facts.collectives import ELEMENTS, AllReduceFact, SizeResult, Wrong
from ddp_doctor.knowledge.collectives import TABLE
from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.model.choices import Confidence, Level
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.probing import all_reduces
from ddp_doctor.probing.all_reduces import Sweep
from tests.rank_harness import HarnessContext
from tests.readings import of_ranks, plain_world


def off(dtype: str = "int64", blamed: tuple[int, ...] = (2,), **more: Any) -> Wrong:
    fields: dict[str, Any] = {"op": "sum", "elements": ELEMENTS, "expected": 15.0, "got": 19.0, "alike": True} | more
    return Wrong(dtype=dtype, blamed=blamed, **fields)


def seen(*wrong: Wrong, **more: Any) -> AllReduceFact:
    return AllReduceFact(ranks=4, tested=("int64 sum",), wrong=wrong, repeatable=True, **more)


def recording(*facts: AllReduceFact) -> Recording:
    return Recording(world=plain_world(1, 4), readings=of_ranks(CHECK.id, facts))


def judge(*facts: AllReduceFact) -> Finding:
    (finding,) = allreduce.all_reduce_is_wrong.apply(recording(*facts))
    return finding


def test_share_that_one_type_finds_wrong_has_likely_confidence():
    finding = judge(*[seen(off())] * 4)
    assert [one.rank for one in finding.culprits] == [2]
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param([seen(off()), seen(off(blamed=(1,))), seen(off()), seen(off())], id="ranks disagree"),
        pytest.param([seen(off(), off("float32", (1,)))] * 4, id="types disagree"),
        pytest.param([seen(off(), off("float32", ()))] * 4, id="one does not decode"),
        pytest.param([seen(off(blamed=(0, 2)))] * 4, id="two ranks have this share"),
        pytest.param([seen(), seen(off()), seen(), seen()], id="one rank alone saw it"),
        pytest.param([seen(off("float32", (), op="max"))] * 4, id="no sum is wrong"),
        pytest.param([seen(off(elements=1))] * 4, id="an older recording blamed one element"),
    ],
)
def test_wrong_sums_that_disagree_blame_no_rank(facts: list[AllReduceFact]):
    finding = judge(*facts)
    assert finding.title.endswith("it is unknown which rank is faulty")
    assert finding.culprits == ()


def compared(total: int, changed: int | None = None) -> Wrong | None:
    """Return what rank 0 of 4 finds wrong in an int64 sum that must be 15, with one element changed."""
    import torch

    tensor = torch.full((ELEMENTS,), total)
    if changed is not None:
        tensor[7] = changed
    ctx = HarnessContext(rank=4, group_rank=0, world_size=4, ranks=(4, 5, 6, 7), local_rank=0, group=None)
    return allreduce.compare(tensor, "int64", "sum", ctx)


def test_only_an_entirely_wrong_tensor_blames_by_original_rank():
    everywhere = compared(19)
    assert everywhere is not None
    assert (everywhere.blamed, everywhere.elements, everywhere.alike) == ((6,), ELEMENTS, True)
    bit = compared(15, 19)
    assert bit is not None
    assert (bit.blamed, bit.elements, bit.alike) == ((), 1, True)
    mixed = compared(19, 17)
    assert mixed is not None
    assert (mixed.blamed, mixed.alike) == ((), False)
    assert compared(15) is None


def test_size_where_the_sweep_stopped_is_a_measurement():
    names = {one.name: one for one in allreduce.measurements(recording(*[seen(stopped_at_bytes=1 << 20)] * 4))}
    untested = names["allreduce_untested_from"]
    assert (untested.value, untested.unit, untested.labels) == (1 << 20, "B", {"ranks": 4})
    assert not list(allreduce.measurements(recording(seen())))


@pytest.mark.parametrize(("ranks", "busbw"), [(1, 0.0), (2, 100.0), (8, 175.0)])
def test_busbw_equals_nccl_tests(ranks: int, busbw: float):
    assert 100.0 * TABLE["all_reduce"].bus_factor(ranks) == busbw


@pytest.mark.parametrize(
    ("level", "mb_per_s", "reaches"),
    [
        (Level.QUICK, 20, "all"),
        (Level.STANDARD, 1500, "all"),
        (Level.STANDARD, 400, "some"),
        (Level.THOROUGH, 200, "no more"),  # the check itself has less time than the next size takes
    ],
)
def test_sweep_cut_short_by_time_reports_a_sufficient_budget(monkeypatch, level, mb_per_s, reaches):
    first = swept(monkeypatch, level, mb_per_s, 60.0)
    short = seen(stopped_at_bytes=first.stopped_at, short_of=first.short_of, needs=first.needs)
    (untested,) = allreduce.measurements(recording(*[short] * 4).model_copy(update={"options": Options(level=level)}))
    told = untested.labels

    assert (told["short_of"], "budget_s" in told, "reaches_bytes" in told) == (
        "time",
        reaches != "no more",
        reaches == "some",
    )
    if "budget_s" in told:
        again = swept(monkeypatch, level, mb_per_s, float(told["budget_s"]))
        assert ("reaches_bytes" in told) == (again.stopped_at is not None)
        assert again.stopped_at is None or again.sizes[-1].size_bytes >= float(told["reaches_bytes"])


def swept(monkeypatch: pytest.MonkeyPatch, level: Level, mb_per_s: float, budget_s: float) -> Sweep:
    """Run the sweep over a simulated link of that rate with 1 ms latency, on its own clock."""
    clock = [0.0]

    def measure(ctx: RankContext, size: int, _row: object) -> SizeResult:
        each = 1e-3 + size / mb_per_s / 1e6
        clock[0] += each * (payload.iterations(size, quick=ctx.level is Level.QUICK) + 6)
        return SizeResult.model_construct(size_bytes=size)

    monkeypatch.setattr(all_reduces, "measure", measure)
    monkeypatch.setattr(all_reduces, "agreed", lambda _ctx, value: value)
    monkeypatch.setattr(all_reduces, "memory_free", lambda _ctx: 1 << 62)
    ctx = HarnessContext(rank=0, group_rank=0, world_size=4, ranks=(0, 1, 2, 3), local_rank=0, group=None)
    ctx.level, ctx.budget_s, ctx.deadline = level, budget_s, 9.8
    monkeypatch.setattr(ctx, "clock", lambda: clock[0])
    return all_reduces.bandwidth(ctx)


def test_sweep_cut_short_by_memory_reports_how_much_all_sizes_need():
    short = seen(stopped_at_bytes=1 << 26, short_of="memory", needs=(8.0 * 2**28, 8.0 * 2**30))
    (untested,) = allreduce.measurements(recording(*[short] * 4))
    assert untested.labels == {"ranks": 4, "short_of": "memory", "needs_bytes": 8.0 * 2**30, "needs_on": "a host"}
