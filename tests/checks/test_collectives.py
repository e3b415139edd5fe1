"""collectives: every collective is correct on real ranks, and a rank with wrong shares is reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from ddp_doctor.checks.collectives import collectives
from ddp_doctor.facts.collectives import CollectiveFact, SizeResult, WrongShare
from ddp_doctor.knowledge.collectives import GROUPS, TABLE
from ddp_doctor.model.choices import Level, Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.probing.all_reduces import bytes_needed
from ddp_doctor.probing.collectives import count_differing
from tests.rank_harness import HarnessContext, Ranks
from tests.readings import findings_of, plain_world
from tests.words import pairs

#: Collectives that expose a rank that sends wrong data, and the torch function that each of them calls.
MOVED = pairs("""
    broadcast=broadcast all_gather=all_gather_into_tensor all_to_all=all_to_all_single
    all_to_all_uneven=all_to_all_single gather=gather scatter=scatter send_recv=batch_isend_irecv
""")
#: Those that take what is given behind what is taken.
SECOND = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "scatter")
ADDED = {"all_reduce": "all_reduce", "reduce_scatter": "reduce_scatter_tensor", "reduce": "reduce"}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(4, preload=(__name__,)) as started:
        yield started


def looked_at(ctx: HarnessContext, part: str, culprit: int | None = None) -> CollectiveFact:
    """The probe of one collective, small. The culprit gives what is not its share, or twice its contribution."""
    import torch.distributed as dist

    ctx = replace(ctx, part=part, options=Options(sizes=(64, 4096, 8), iters=2), level=Level.QUICK)
    call = (MOVED | ADDED).get(part)
    if culprit != ctx.rank or call is None:
        return collectives.probe(ctx)
    honest = getattr(dist, call)

    def spoiled(*given: Any, **named: Any) -> Any:
        spoil(given[1 if call in SECOND else 0], doubled=part in ADDED)
        return honest(*given, **named)

    setattr(dist, call, spoiled)
    try:
        return collectives.probe(ctx)
    finally:
        setattr(dist, call, honest)


def spoil(given: Any, *, doubled: bool) -> None:
    import torch

    for each in given if isinstance(given, list) else [given]:
        tensor: Any = getattr(each, "tensor", each)
        if doubled:
            tensor.mul_(2)
        elif tensor is not None and tensor.is_contiguous() and tensor.numel():
            bits = tensor.view(torch.uint8)
            bits.copy_(bits ^ 1)


def judge(facts: list[CollectiveFact], parts: int = 1) -> list[Finding]:
    readings = tuple(
        Reading(
            check="collectives", status=Status.COLLECTED, rank=number // parts, part=fact.part, fact=fact.recorded()
        )
        for number, fact in enumerate(facts)
    )
    count = len(facts) // parts
    world = plain_world(1, count)
    recording = Recording(world=world, readings=readings)
    return findings_of(collectives.CHECK, recording)


def all_of_them(ctx: HarnessContext, culprit: int | None = None) -> dict[str, CollectiveFact]:
    """Return the facts by part; with a culprit, only of collectives whose shares have a sender."""
    of_all = [name for name in TABLE if name != GROUPS or ctx.world_size > 3]
    return {part: looked_at(ctx, part, culprit) for part in (of_all if culprit is None else [*MOVED, *ADDED])}


@pytest.mark.ranks
@pytest.mark.parametrize("count", [2, 3, 4])
def test_healthy_ranks_are_right_in_every_collective(ranks: Ranks, count: int):
    found = ranks.facts(all_of_them, on=tuple(range(count)))

    assert judge([fact for facts in found for fact in facts.values()], len(found[0])) == []
    for part, fact in found[0].items():
        assert fact.tested, part
        unusual = ("float8", "complex64", "not contiguous")
        assert all(any(words in case for words in unusual) for case in fact.not_offered), (part, fact.not_offered)
        assert bool(fact.sizes) is (TABLE[part].is_timed or part == GROUPS), part
    assert {fact.repeatable for fact in found[0].values()} == {True, None}


@pytest.mark.ranks
@pytest.mark.parametrize(("count", "culprit"), [(2, 1), (3, 0), (4, 2)])
def test_rank_that_sends_wrong_shares_is_reported_by_every_collective(ranks: Ranks, count: int, culprit: int):
    found = ranks.facts(all_of_them, culprit, on=tuple(range(count)))

    for part in found[0]:
        (finding,) = judge([facts[part] for facts in found])
        assert [named.rank for named in finding.culprits] == [culprit], (part, finding.title)


def memory_to_look(_: HarnessContext) -> int:
    import torch
    from torch.profiler import ProfilerActivity, profile

    result, expected = torch.zeros(8 << 20), torch.zeros(1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        kept = torch.empty(1)
        assert count_differing(result, expected) == 0
    with NamedTemporaryFile(suffix=".json") as trace:
        profiled.export_chrome_trace(trace.name)
        events = json.loads(Path(trace.name).read_text())["traceEvents"]
    held = [event["args"]["Total Allocated"] for event in events if event["name"] == "[memory]"]
    return int(max(held) - min(held)) + kept.nbytes


@pytest.mark.ranks
def test_checking_a_result_uses_no_more_memory_than_requested(ranks: Ranks):
    """To count the wrong elements of 256 MiB took 512 MiB more once, and a healthy H100 was called unhealthy."""
    (most,) = ranks.facts(memory_to_look, on=(0,))

    assert 1 << 20 < most <= bytes_needed(TABLE["all_reduce"], 0, None)


def takes_wrongly(ctx: HarnessContext, sources: tuple[int, ...] | None) -> CollectiveFact:
    """Run an all-gather that gives rank 2 wrong shares, from all ranks or only from ``sources``."""
    import torch.distributed as dist

    honest = dist.all_gather_into_tensor

    def spoiled(result: Any, given: Any, **named: Any) -> Any:
        done = honest(result, given, **named)
        for source, share in enumerate(result.chunk(ctx.world_size)):
            if sources is None or source in sources:
                spoil(share, doubled=False)
        return done

    if ctx.rank == 2:
        setattr(dist, "all_gather_into_tensor", spoiled)  # noqa: B010 - a sabotage that types cannot describe
    try:
        return looked_at(ctx, "all_gather")
    finally:
        setattr(dist, "all_gather_into_tensor", honest)  # noqa: B010


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("sources", "culprit", "words"),
    [
        (None, (2, None), "all data that rank 2 receives is wrong"),
        ((1,), (1, 2), "only data from rank 1 to rank 2 is wrong"),
        ((0, 1), None, "it is unknown which rank is faulty"),
    ],
    ids=["receiver", "path", "nobody"],
)
def test_wrong_receiver_or_direction_is_reported(ranks: Ranks, sources, culprit, words: str):
    (finding,) = judge(ranks.facts(takes_wrongly, sources))

    assert words in finding.title
    assert [(named.rank, named.peer_rank) for named in finding.culprits] == ([culprit] if culprit else [])


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.is_timed])
def test_sizes_counts_and_busbw_equal_nccl_tests(name: str):
    """Compare with src/*.cu of nccl-tests, GetCollByteCount and GetBw: 1000 MB/s of 1 MiB among 6 ranks."""
    row, ranks, size = TABLE[name], 6, 1 << 20
    count = {"all_reduce": size // 4, "broadcast": size // 4, "reduce": size // 4, "send_recv": size // 4}.get(
        name, (size // 4 // ranks) & ~3
    )
    factor = {"all_reduce": 2 * 5 / 6, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0}.get(name, 5 / 6)
    assert row.share_bytes(size, ranks) // 4 == count
    assert row.moved(size, ranks) == 4 * count * (1 if factor in (1.0, 2 * 5 / 6) else ranks)
    assert row.bus_factor(ranks) == pytest.approx(factor)


def all_gather(*wrong: dict[int, int], sizes: int = 0) -> list[CollectiveFact]:
    """Return facts of four ranks that each saw this many wrong shares."""
    looked = dict.fromkeys(range(4), 10)
    share: dict[str, Any] = {"case": "float32", "elements": 4, "of": 4, "expected": 1.0, "got": 2.0}
    size = SizeResult(
        size_bytes=1024, time_us=1, min_us=1, max_us=1, iterations=1, algbw_gb_per_s=1, busbw_gb_per_s=1, wrong=sizes
    )
    return [
        CollectiveFact(
            part="all_gather",
            ranks=4,
            tested=("float32",),
            sources=looked,
            sizes=(size,) * bool(sizes),
            wrong=tuple(WrongShare(source=source, **share) for source, count in seen.items() for _ in range(count)),
        )
        for seen in wrong
    ]


def sums(part: str, *blamed: tuple[int, ...] | None, own: int = 0) -> list[CollectiveFact]:
    """Return facts of three ranks: the ranks that each blames for wrong sums; rank 2's input changed ``own`` times."""
    share: dict[str, Any] = {"elements": 4, "of": 4, "expected": 1.0, "got": 2.0}
    return [
        CollectiveFact(
            part=part,
            ranks=3,
            tested=("float32 sum",),
            wrong=(
                *([] if ranks is None else [WrongShare(case="float32 sum", blamed=ranks, **share)]),
                *[WrongShare(case="float32 sum", source=2, **share)] * (own if rank == 2 else 0),
            ),
        )
        for rank, ranks in enumerate(blamed)
    ]


@pytest.mark.parametrize(
    ("facts", "culprits"),
    [
        pytest.param(sums("reduce", (1,), (1,), (1,)), [1], id="at every root"),
        pytest.param(sums("reduce", (1,), None, None), [], id="at one root alone"),
        pytest.param(sums("reduce_scatter", (1,), (1,), None), [], id="one rank's part is right"),
        pytest.param(sums("reduce_scatter", (1,), (1,), (1,), own=1), [], id="another's input changed once"),
        pytest.param(sums("reduce_scatter", (2,), (2,), (2,), own=3), [2], id="its input changed, and the sums agree"),
    ],
)
def test_wrong_sum_reports_the_rank_with_the_wrong_contribution(facts: list[CollectiveFact], culprits: list[int]):
    (finding,) = judge(facts)

    assert [named.rank for named in finding.culprits] == culprits, finding.title
