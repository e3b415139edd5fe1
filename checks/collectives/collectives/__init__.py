"""Collectives: whether the result of each one is right, whose share is wrong, and how fast it is.

Raw input: none; it is measured on every rank, one collective after the other, and shown as nccl-tests does:

    #       size         count      type   redop    root     time   algbw   busbw #wrong
    #        (B)    (elements)                               (us)  (GB/s)  (GB/s)
         1048576        131072     float    none      -1    812.4    1.29    0.65      0

Why it matters: DDP itself reduces and broadcasts, which the check allreduce tests in every run. FSDP, ZeRO, tensor and
expert parallel training use the other collectives. One table defines which rank sends what (knowledge/collectives.py).
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ddp_doctor.checks.collectives.collectives import rules
from ddp_doctor.facts.collectives import ELEMENTS, CollectiveFact, SizeResult, WrongShare
from ddp_doctor.knowledge.collectives import ALL_REDUCE, BARRIER, GROUPS, OBJECTS, TABLE, Collective, measured_sizes
from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.knowledge.victims import blames_peer
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import COLLECTIVES, Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Absent, Skip
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing import all_reduces, collectives
from ddp_doctor.probing.collectives import Case, NotOffered
from ddp_doctor.views.collective_sizes import measured

#: Maximum number of wrong shares to keep per sender; more add no information.
_MOST_OF_A_SOURCE = 3


def probe(ctx: RankContext) -> CollectiveFact:
    """Test the collective of this part. Raises Absent if the backend does not offer it at all."""
    row = TABLE[ctx.part]
    if row.name == BARRIER:
        early = tuple(collectives.early_leavers(ctx))
        return CollectiveFact(part=row.name, ranks=ctx.world_size, tested=(BARRIER,), wrong=early)
    if row.name == OBJECTS:
        return _objects(ctx)
    if row.name == GROUPS:
        return _groups(ctx)
    tested, refused, sources, wrong = list[str](), dict[str, str](), Counter[int](), list[WrongShare]()
    for case in collectives.cases(row, ctx.world_size):
        try:
            looked_at, found = collectives.wrong_shares(ctx, row, case)
        except NotOffered as why:
            refused[case.words(row)] = str(why)
            all_reduces.agreed(ctx, 0.0)  # all ranks refused, and continue together
            continue
        # gloo fails here on every machine (torch 2.13); only wrong contiguous data is a fault.
        if found and not case.is_contiguous:
            refused[case.words(row)] = "it ignores strides, so the data arrives wrong"
            continue
        tested.append(case.words(row))
        counts = Counter(share.source for share in wrong)
        wrong += [share for share in found if share.source is None or counts[share.source] < _MOST_OF_A_SOURCE]
        sources.update(looked_at)
    if not tested:
        raise Absent(f"the backend does not support {row.words}: {next(iter(refused.values()))}")
    repeatable = collectives.is_repeatable(ctx, row) if row.reduces else None
    swept = _times(ctx, row) if row.is_timed else all_reduces.Sweep([])
    return CollectiveFact(
        part=row.name,
        ranks=ctx.world_size,
        tested=tuple(tested),
        not_offered=refused,
        sources=dict(sources),
        wrong=tuple(wrong),
        repeatable=repeatable,
        sizes=tuple(swept.sizes),
        stopped_at_bytes=swept.stopped_at,
        short_of=swept.short_of,
    )


def _times(ctx: RankContext, row: Collective) -> all_reduces.Sweep:
    """Measure the requested sizes, or the default ones; sizes below a site's floor twice."""
    options = ctx.options
    floors = {floor.size_bytes: floor.bytes_per_s for floor in options.min_busbw if floor.collective == row.name}
    wanted = {*floors, *(measured_sizes(options.sizes) if options.sizes else ())}
    if floors and not options.sizes and (row.name in options.collectives or options.level is Level.THOROUGH):
        wanted |= {*payload.sweep_sizes(quick=False)}
    sizes = sorted(size for size in wanted if row.moved(size, ctx.world_size))
    swept = all_reduces.bandwidth(ctx, row, sizes)
    for at, result in enumerate(swept.sizes):
        floor = floors.get(sizes[at], 0.0) if sizes else 0.0
        is_below = float(0 < result.busbw_gb_per_s * 1e9 < floor)
        if all_reduces.agreed(ctx, is_below) and all_reduces.has_time_for(ctx, result):
            swept.sizes[at] = all_reduces.faster(result, all_reduces.measure(ctx, sizes[at], row))
    in_place = list[SizeResult]()
    if options.collectives and row.name in ("all_gather", "reduce_scatter"):  # nccl-tests times both
        for result in swept.sizes:
            if not all_reduces.has_time_for(ctx, result):
                return swept._replace(sizes=[*swept.sizes, *in_place], stopped_at=result.size_bytes, short_of="time")
            in_place.append(all_reduces.measure(ctx, result.size_bytes, row, is_in_place=True))
    return swept._replace(sizes=[*swept.sizes, *in_place])


def _objects(ctx: RankContext) -> CollectiveFact:
    # Corrupt bytes are not a valid pickle, or give a wrong size.
    if all_reduces.agreed(ctx, float(len(collectives.wrong_shares(ctx, TABLE["all_gather"], Case("uint8"))[1]))):
        raise Skip("torch sends objects with all_gather, which delivers wrong data on these ranks")
    try:
        found = collectives.wrong_objects(ctx)
    except (RuntimeError, ImportError) as error:
        if blames_peer(str(error)):
            raise
        raise Absent(f"torch cannot send objects on these ranks: {str(error)[:200]}") from error
    wrong = tuple(share for shares in found.values() for share in shares)
    return CollectiveFact(part=OBJECTS, ranks=ctx.world_size, tested=tuple(found), wrong=wrong)


#: Bytes of an all-reduce among some of the ranks, by device.
_OF_A_GROUP_BYTES = {"cpu": 1 << 20, "cuda": 64 << 20}
_OF_A_GROUP_TIMES = 5


def _groups(ctx: RankContext) -> CollectiveFact:
    """Test all-reduces within nodes and between nodes, by local rank (or in halves of one node), then both at once."""
    import torch
    import torch.distributed as dist

    kinds = _kinds_of_groups(ctx)
    mine: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for kind, groups in kinds.items():
        for members in groups:
            with ctx.step("new_group", f"{kind}: {members}"):
                group = dist.new_group([dist.get_global_rank(ctx.group, rank) for rank in members])
            if ctx.group_rank in members:
                mine[kind] = group, members
    row, tested, wrong, sizes = TABLE[ALL_REDUCE], list[str](), list[WrongShare](), list[SizeResult]()
    size = _OF_A_GROUP_BYTES[ctx.device.partition(":")[0]]
    for kind in kinds:
        group, members = mine.get(kind, (None, ()))
        if members:
            for dtype in ("float32", "int64"):
                original = [ctx.ranks[rank] for rank in members]
                found = collectives.wrong_shares(ctx, row, Case(dtype, "sum"), group, original)[1]
                wrong += [share.model_copy(update={"case": f"{share.case} {kind}", "blamed": ()}) for share in found]
            if all_reduces.memory_needed(ctx, row, size) <= all_reduces.memory_free(ctx):
                timed = collectives.timed(ctx, row, size, _OF_A_GROUP_TIMES, group=group)
                sizes.append(timed.model_copy(update={"group": kind}))
        tested.append(kind)
        all_reduces.agreed(ctx, 0.0)
    pair = [*mine.values(), (ctx.group, tuple(range(ctx.world_size)))][:2]
    with ctx.step("all_reduce", "in two groups at once"):
        tensors = [torch.full((ELEMENTS,), float(ctx.group_rank + 1), device=ctx.device) for _ in pair]
        both = zip(tensors, pair, strict=True)
        for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor, (group, _) in both]:
            work.wait()
        for tensor, (_, members) in zip(tensors, pair, strict=True):
            due = float(sum(rank + 1 for rank in members))
            off, got = int((tensor != due).sum().item()), float(tensor.max().item())
            case = "two groups at once"
            wrong += [WrongShare(case=case, elements=off, of=ELEMENTS, expected=due, got=got)] * (off > 0)
    tested.append("two groups at once")
    return CollectiveFact(
        part=GROUPS, ranks=ctx.world_size, tested=tuple(tested), wrong=tuple(wrong), sizes=tuple(sizes)
    )


def _kinds_of_groups(ctx: RankContext) -> dict[str, list[tuple[int, ...]]]:
    """Return the group ranks of each group of two or more, by the kind of group. Raises Skip if there are none."""
    with ctx.step("nodes"):
        nodes = ctx.exchange("nodes", f"{ctx.node}")
    of_nodes = grouped((node, rank) for rank, node in enumerate(nodes)).values()
    if len(of_nodes) == 1:
        half = ctx.world_size // 2
        kinds = {"in halves of the node": [tuple(range(half)), tuple(range(half, ctx.world_size))]}
    else:
        rails = grouped((place, rank) for ranks in of_nodes for place, rank in enumerate(ranks)).values()
        kinds = {"within each node": [*map(tuple, of_nodes)], "between nodes": [*map(tuple, rails)]}
    several = {kind: [ranks for ranks in groups if len(ranks) > 1] for kind, groups in kinds.items()}
    kept = {kind: groups for kind, groups in several.items() if groups and (len(of_nodes) > 1 or len(groups) > 1)}
    if not kept:
        raise Skip("requires two nodes, or four ranks on one node, because each group needs at least two ranks")
    return kept


def parts(options: Options) -> tuple[str, ...]:
    """Return all collectives at level thorough; otherwise the requested ones, or all if only the check was given."""
    asked = (*options.collectives, *(floor.collective for floor in options.min_busbw))
    if options.level is Level.THOROUGH or (COLLECTIVES in options.only and not asked):
        return tuple(TABLE)
    return tuple(name for name in TABLE if name in asked)


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield the values that nccl-tests prints, by collective and size."""
    yield from measured(
        (ALL_REDUCE if rank.fact.part == GROUPS else rank.fact.part, rank.fact.ranks, rank.rank or 0, size)
        for rank in recording.facts(CollectiveFact)
        for size in rank.fact.sizes
    )


CHECK = Check(
    id=COLLECTIVES,
    title="Every collective is right, repeatable and fast",
    where=Where.RANK,
    probe=probe,
    facts=(CollectiveFact,),
    rules=rules_in(rules),
    level=Level.THOROUGH,
    parts=parts,
    parts_by="--level thorough, or --collective",
    min_ranks=2,
    cost_s=15.0,
    deadline_s=20.0,
    measurements=measurements,
)
