"""collectives: on real ranks each collective is right, and a rank that gives or takes wrong shares is named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ddp_doctor.checks.collectives import collectives
from ddp_doctor.facts.collectives import CollectiveFact
from ddp_doctor.knowledge.collectives import GROUPS, TABLE
from ddp_doctor.model.choices import Level, Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Node, Options, Recording, World
from tests.rank_harness import HarnessContext, Ranks

#: In which collectives a rank may give wrongly, and what torch calls there.
MOVED = {
    "broadcast": "broadcast",
    "all_gather": "all_gather_into_tensor",
    "all_to_all": "all_to_all_single",
    "all_to_all_uneven": "all_to_all_single",
    "gather": "gather",
    "scatter": "scatter",
    "send_recv": "batch_isend_irecv",
}
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
    """Double it, or else change its bits."""
    import torch

    for each in given if isinstance(given, list) else [given]:
        tensor: Any = getattr(each, "tensor", each)
        if doubled:
            tensor.mul_(2)
        elif tensor is not None and tensor.is_contiguous() and tensor.numel():
            bits = tensor.view(torch.uint8)
            bits.copy_(bits ^ 1)


def judge(facts: list[CollectiveFact], parts: int = 1) -> list[Finding]:
    """The findings of so many facts of each rank, those of rank 0 first."""
    readings = tuple(
        Reading(check="collectives", status=Status.COLLECTED, rank=number // parts, fact=fact.recorded())
        for number, fact in enumerate(facts)
    )
    count = len(facts) // parts
    world = World(nproc_per_node=count, world_size=count, nodes=(Node(hostname="node0"),))
    recording = Recording(world=world, readings=readings)
    return [finding for rule in collectives.CHECK.rules for finding in rule.apply(recording)]


def all_of_them(ctx: HarnessContext, culprit: int | None = None) -> dict[str, CollectiveFact]:
    """By part; of collectives whose shares have a giver where there is a culprit."""
    of_all = [name for name in TABLE if name != GROUPS or ctx.world_size > 3]
    return {part: looked_at(ctx, part, culprit) for part in (of_all if culprit is None else [*MOVED, *ADDED])}


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


@pytest.mark.parametrize(("count", "culprit"), [(2, 1), (3, 0), (4, 2)])
def test_a_rank_that_gives_wrong_shares_is_named_by_every_collective(ranks: Ranks, count: int, culprit: int):
    found = ranks.facts(all_of_them, culprit, on=tuple(range(count)))

    for part in found[0]:
        (finding,) = judge([facts[part] for facts in found])
        assert [named.rank for named in finding.culprits] == [culprit], (part, finding.title)


def takes_wrongly(ctx: HarnessContext, sources: tuple[int, ...] | None) -> CollectiveFact:
    """An all-gather of which rank 2 takes wrong shares, of all or of these ranks."""
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


@pytest.mark.parametrize(
    ("sources", "culprit", "words"),
    [
        (None, (2, None), "all that rank 2 takes is wrong"),
        ((1,), (1, 2), "only what rank 1 gives to rank 2 is wrong"),
        ((0, 1), None, "it is unclear whose share is wrong"),
    ],
    ids=["receiver", "path", "nobody"],
)
def test_who_takes_wrongly_or_one_way_alone_is_named(ranks: Ranks, sources, culprit, words: str):
    (finding,) = judge(ranks.facts(takes_wrongly, sources))

    assert words in finding.title
    assert [(named.rank, named.peer_rank) for named in finding.culprits] == ([culprit] if culprit else [])


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.is_timed])
def test_sizes_counts_and_bus_bandwidths_are_those_of_nccl_tests(name: str):
    """By src/*.cu of nccl-tests, GetCollByteCount and GetBw: 1000 MB/s of 1 MiB among 6 ranks."""
    row, ranks, size = TABLE[name], 6, 1 << 20
    count = {"all_reduce": size // 4, "broadcast": size // 4, "reduce": size // 4, "send_recv": size // 4}.get(
        name, (size // 4 // ranks) & ~3
    )
    factor = {"all_reduce": 2 * 5 / 6, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0}.get(name, 5 / 6)
    assert row.share_bytes(size, ranks) // 4 == count
    assert row.moved(size, ranks) == 4 * count * (1 if factor in (1.0, 2 * 5 / 6) else ranks)
    assert row.bus_factor(ranks) == pytest.approx(factor)
