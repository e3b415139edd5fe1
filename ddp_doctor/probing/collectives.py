"""One collective on matching tensors: whether the result is right, which rank gave a wrong share, and its time.

Data that is only moved encodes its sender and its receiver, which reveals a misplaced share. Data that is reduced is
encoded as in knowledge/ddp/payload.py. Each test runs twice, with different codes and roots: an error that follows a
rank through both runs is that rank's.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import accumulate, pairwise
from math import ceil, isfinite
from operator import and_, or_, xor
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from ddp_doctor.facts.collectives import ELEMENTS, SizeResult, WrongShare
from ddp_doctor.knowledge.collectives import ALL_REDUCE, MOST_ROOTS, TABLE, Collective
from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.knowledge.victims import blames_peer
from ddp_doctor.model.context import RankContext
from ddp_doctor.probing.exchanges import pattern
from ddp_doctor.probing.rank_identity import finish

if TYPE_CHECKING:
    import torch

#: Not a multiple of a vector, a segment or a GPU's warp.
ODD_ELEMENTS = 1009
#: Types that backends move without computing; types that the backend rejects count as not offered.
_MOVED = (
    *("float32", "float64", "float16", "bfloat16", "complex64", "float8_e4m3fn"),
    *("int64", "int32", "int8", "uint8", "bool"),
)
#: Operations in addition to those of payload.exact_cases, for float32 and int64.
_AVERAGE, _BITWISE = "avg", ("band", "bor", "bxor")
_BITS = 62


class NotOffered(Exception):
    """The backend rejects a type, an operation or a collective; the message is the backend's."""


class Case(NamedTuple):
    """One way to call a collective. ``turn`` shifts the codes; ``op`` is empty if nothing is reduced."""

    dtype: str
    op: str = ""
    elements: int = ELEMENTS
    root: int = 0
    turn: int = 0
    is_contiguous: bool = True

    def words(self, row: Collective) -> str:
        """Describe the case: ``float32 sum, 1009 elements, root 1``."""
        parts = [f"{self.dtype} {self.op}".strip()]
        parts += [f"{self.elements} elements"] * (self.elements != ELEMENTS)
        parts += [f"root {self.root}"] * row.has_root
        parts += ["backwards"] * (row.ring and self.root > 0)
        parts += ["not contiguous"] * (not self.is_contiguous)
        return ", ".join(parts)


def cases(row: Collective, ranks: int) -> Iterator[Case]:
    """Yield all types and operations, then an odd length with each rank as the root, then a non-contiguous tensor."""
    ways = [(dtype, "") for dtype in _MOVED]
    if row.reduces:
        ways = [*payload.exact_cases(ranks), ("float32", _AVERAGE), *(("int64", op) for op in _BITWISE)]
    yield from (Case(*way) for way in ways)
    for root in range(min(ranks, MOST_ROOTS) if row.has_root else 2 if row.ring else 1):
        yield from (Case(dtype, "sum" * row.reduces, ODD_ELEMENTS, root, 1) for dtype in ("float32", "int64"))
    if not (row.ring or row.has_root):  # otherwise, torch may reject it on some ranks only
        yield Case("float32", "sum" * row.reduces, turn=1, is_contiguous=False)


class Call:
    """A collective with its tensors. Input and output are one tensor if torch offers only the in-place form."""

    def __init__(
        self,
        ctx: RankContext,
        row: Collective,
        dtype: str,
        share_elements: int,
        *,
        op: str = "sum",
        root: int = 0,
        is_in_place: bool = False,
        is_contiguous: bool = True,
        group: Any = None,
    ) -> None:
        import torch
        import torch.distributed as dist

        self.row, self.root, self.share_elements = row, root, share_elements
        self.group = ctx.group if group is None else group
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.op = getattr(dist.ReduceOp, op.upper())
        self.peers = [dist.get_global_rank(self.group, rank) for rank in range(self.ranks)]
        gives = [self.length(self.rank, index) for index in range(row.gives(self.rank, self.ranks, root))]
        takes = [self.length(source or 0, index) for source, index in row.takes(self.rank, self.ranks, root)]

        def new(elements: int) -> torch.Tensor:
            step = 1 if is_contiguous else 2
            whole = torch.zeros(step * elements, dtype=getattr(torch, dtype), device=ctx.device)
            return whole[::step]

        if row.in_place:
            self.given = self.result = new(share_elements)
        else:
            self.given, self.result = new(sum(gives)), new(sum(takes))
            own = slice(self.rank * share_elements, (self.rank + 1) * share_elements)
            if is_in_place and row.for_each:
                self.result = self.given[own]
            elif is_in_place:
                self.given = self.result[own]
        self.given_shares = _split(self.given, gives)
        self.taken_shares = _split(self.result, takes)

    def length(self, source: int, index: int) -> int:
        """Return the number of elements of a share."""
        return self.share_elements + (source + 2 * index) % 3 * self.row.is_uneven

    def run(self, *, is_async: bool = False) -> Any:
        """Start the call; on a GPU, it returns before it is done. With ``is_async``, return torch's work at once."""
        import torch.distributed as dist

        given, result, group, root = self.given, self.result, self.group, self.peers[min(self.root, self.ranks - 1)]
        how: dict[str, Any] = {"group": group, "async_op": is_async}
        work, name = None, self.row.name
        if name == ALL_REDUCE:
            work = dist.all_reduce(result, op=self.op, **how)
        elif name == "broadcast":
            work = dist.broadcast(result, src=root, **how)
        elif name == "all_gather":
            work = dist.all_gather_into_tensor(result, given, **how)
        elif name == "reduce_scatter":
            work = dist.reduce_scatter_tensor(result, given, op=self.op, **how)
        elif name == "reduce":
            work = dist.reduce(result, dst=root, op=self.op, **how)
        elif name == "gather":
            work = dist.gather(given, self.taken_shares or None, dst=root, **how)
        elif name == "scatter":
            work = dist.scatter(result, self.given_shares or None, src=root, **how)
        elif name == "barrier":
            work = dist.barrier(**how)
        elif name == "send_recv":
            ahead, behind = (
                self.peers[(self.rank + step) % self.ranks] for step in ((-1, 1) if self.root else (1, -1))
            )
            both = [dist.P2POp(dist.isend, given, ahead, group), dist.P2POp(dist.irecv, result, behind, group)]
            for each in dist.batch_isend_irecv(both):
                each.wait()
        else:
            taken, sent = ([len(share) for share in shares] for shares in (self.taken_shares, self.given_shares))
            work = dist.all_to_all_single(result, given, taken, sent, **how)
        return work


def _split(tensor: "torch.Tensor", lengths: Sequence[int]) -> list["torch.Tensor"]:
    ends = accumulate(lengths)
    return [tensor[end - length : end] for length, end in zip(lengths, ends, strict=True)]


def wrong_shares(
    ctx: RankContext, row: Collective, case: Case, group: Any = None, members: Sequence[int] = ()
) -> tuple[list[int], list[WrongShare]]:
    """Call it once; return the original ranks whose shares were checked here, and the wrong shares.

    A rank also checks its own input, which must be unchanged. ``members`` are the original ranks of a ``group``. Raises
    NotOffered on all ranks. In rings and with a root, torch may reject a type on some ranks only, and a ring of such a
    type breaks the group for any other call (2.9). Therefore, a broadcast, which all ranks reject, is tried first.
    """
    way: dict[str, Any] = {"op": case.op or "sum", "root": case.root, "is_contiguous": case.is_contiguous}
    call = Call(ctx, row, case.dtype, case.elements, group=group, **way)
    members = members or ctx.ranks
    expect = _Expected(case, call.ranks)
    for index, share in enumerate(call.given_shares):
        share.copy_(expect.share_of(call.rank, index, share))
    with ctx.step(row.name, f"{case.words(row)} [{case.elements}]"):
        try:
            if row.ring or row.has_root:
                Call(ctx, TABLE["broadcast"], case.dtype, 1, group=group).run()
            call.run()
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            if blames_peer(str(error)):
                raise
            raise NotOffered(str(error).partition("\n")[0][:200]) from error
        finish(ctx.device)
    looked_at, found = list[int](), list[WrongShare]()
    shares = [*zip(row.takes(call.rank, call.ranks, case.root), call.taken_shares, strict=True)]
    if not row.in_place:
        shares += [((call.rank, index), share) for index, share in enumerate(call.given_shares)]
    for (source, index), share in shares:
        expected = expect.share_of(source, index, share)
        off = _differs(share, expected).nonzero()[:, 0]
        looked_at += [] if source is None else [members[source]]
        if len(off):
            values, due = _bits(share.contiguous())[off], _bits(expected.expand_as(share).contiguous())[off]
            got = _number(values[:1], share.dtype)
            throughout = len(off) == len(share) and bool((values == values[0]).all())
            blamed = expect.blamed(got, index) if source is None and throughout else []
            wrong = WrongShare(
                case=case.words(row),
                source=None if source is None else members[source],
                elements=len(off),
                of=len(share),
                expected=_number(due[:1], share.dtype),
                got=got,
                blamed=tuple(members[rank] for rank in blamed),
            )
            found.append(wrong)
    return looked_at, found


def _differs(tensor: "torch.Tensor", expected: "torch.Tensor") -> "torch.Tensor":
    """Compare the bits of each element, so that a NaN equals itself."""
    return _bits(tensor.contiguous()) != _bits(expected)


#: Elements of large shares to compare at once: torch needs eight bytes per boolean to count them.
_COMPARED_AT_ONCE = 1 << 20


def count_differing(tensor: "torch.Tensor", expected: "torch.Tensor") -> int:
    """Return the number of elements with different bits; compares in pieces to save memory."""
    import torch

    pieces = (torch.split(whole, _COMPARED_AT_ONCE) for whole in (tensor, expected.expand_as(tensor)))
    return sum(int(_differs(*pair).sum().item()) for pair in zip(*pieces, strict=True))


def _bits(tensor: "torch.Tensor") -> "torch.Tensor":
    import torch

    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize])


def _number(bits: "torch.Tensor", dtype: "torch.dtype") -> float:
    """Return an element as a JSON number: its value, or its bits if it is not finite."""
    value = float(bits.view(dtype).cpu().real)
    return value if isfinite(value) else float(bits)


class _Expected(NamedTuple):
    """The input of each rank in a case, and the result."""

    case: Case
    ranks: int

    def share_of(self, source: int | None, index: int, like: "torch.Tensor") -> "torch.Tensor":
        """Return the share that a rank gives under this index, or the reduction of all ranks' shares."""
        if self.case.op:
            whole = self._whole() if source is None else self._share(source)
            return like.new_full((1,), self._factor(index) * whole)
        import torch

        assert source is not None
        code = (self.case.turn * self.ranks + source) * self.ranks + index
        found = pattern(code, like.numel() * like.itemsize, str(like.device))
        return (found & 1 if like.dtype == torch.bool else found).view(like.dtype)

    def _whole(self) -> int:
        op, shares = self.case.op, [self._share(rank) for rank in range(self.ranks)]
        if op in _BITWISE:
            return reduce({"band": and_, "bor": or_, "bxor": xor}[op], shares)
        return sum(shares) // self.ranks if op == _AVERAGE else payload.expected(op, self.ranks, self.case.dtype)

    def blamed(self, got: float, index: int) -> list[int]:
        """Return the ranks for which one missing or doubled share explains a wrong sum."""
        codes = payload.blame(self.case.op, got / self._factor(index), self.ranks, self.case.dtype)
        return [(code - self.case.turn) % self.ranks for code in codes]

    def _share(self, rank: int) -> int:
        code = (rank + self.case.turn) % self.ranks
        if self.case.op == "band":
            return (1 << _BITS) - 1 - (1 << code % _BITS)
        if self.case.op in _BITWISE:
            return 1 << code % _BITS
        scale = self.ranks if self.case.op == _AVERAGE else 1
        return scale * payload.share("sum" if scale > 1 else self.case.op, code, self.ranks, self.case.dtype)

    def _factor(self, index: int) -> int:
        """Return the factor that distinguishes shares by index, or 1 if the sums would not stay exact."""
        if self.case.op != "sum":
            return 1
        largest = 2 * self.ranks * payload.expected("sum", self.ranks, self.case.dtype)
        return 1 + index if largest < 1 << payload.EXACT_BITS[self.case.dtype] else 1


def is_repeatable(ctx: RankContext, row: Collective, detail: str = f"float32 sum [{ELEMENTS}]") -> bool:
    """Return True if the same inputs, inexact in fp32, give the same bits twice. ``detail`` is the step's."""
    import torch

    results = []
    for _ in range(2):
        call = Call(ctx, row, "float32", ELEMENTS)
        generator = torch.Generator().manual_seed(1000 + ctx.group_rank)
        call.given.copy_(torch.rand(call.given.shape, generator=generator))
        with ctx.step(row.name, detail):
            call.run()
            finish(ctx.device)
        results.append(call.result)
    is_taken = bool(row.takes(ctx.group_rank, ctx.world_size, 0))
    return not is_taken or torch.equal(*results)


def timed(
    ctx: RankContext,
    row: Collective,
    size: int,
    iterations: int,
    *,
    warmup: int = 1,
    is_in_place: bool = False,
    group: Any = None,
) -> SizeResult:
    """Time single calls of about ``size`` bytes of fp32, then check one.

    There must be a share for each rank. ``wrong`` counts elements, as nccl-tests does. The timed calls move zeros,
    whose sums stay zero.
    """
    ranks = ctx.world_size if group is None else group.size()
    count = row.share_bytes(size, ranks) // 4
    call = Call(ctx, row, "float32", count, is_in_place=is_in_place, group=group)
    with ctx.step(row.name, f"float32 [{count}], {iterations + warmup + 1} times"):
        for _ in range(warmup):
            call.run()
        finish(ctx.device)
        times = _times(ctx, call.run, iterations)
        expect = _Expected(Case("float32", "sum" * row.reduces), call.ranks)
        for index, share in enumerate(call.given_shares):
            share.copy_(expect.share_of(call.rank, index, share))
        call.run()
        taken = zip(row.takes(call.rank, call.ranks, 0), call.taken_shares, strict=True)
        wrong = sum(count_differing(share, expect.share_of(*which, share)) for which, share in taken)
    moved = 4 * count * (ranks if row.of_shares else 1)
    algbw = moved / median(times) / 1e9
    return SizeResult(
        size_bytes=moved,
        time_us=median(times) * 1e6,
        min_us=min(times) * 1e6,
        max_us=max(times) * 1e6,
        iterations=iterations,
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=algbw * row.bus_factor(ranks),
        wrong=wrong,
        mean_us=mean(times) * 1e6,
        p99_us=sorted(times)[ceil(0.99 * len(times)) - 1] * 1e6,
        count=count,
        in_place=is_in_place or row.in_place,
    )


def _times(ctx: RankContext, run: Callable[[], None], calls: int) -> list[float]:
    """Return the seconds of each call; on a GPU from its events, with calls queued without waiting."""
    if not ctx.device.startswith("cuda"):
        moments = [ctx.clock()]
        for _ in range(calls):
            run()
            moments.append(ctx.clock())
        return [after - before for before, after in pairwise(moments)]
    import torch

    event: Any = torch.cuda.Event
    marks = [event(enable_timing=True) for _ in range(calls + 1)]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    marks[-1].synchronize()
    return [float(before.elapsed_time(after)) / 1e3 for before, after in pairwise(marks)]


# --- collectives without shares ---------------------------------------------------------------------------------

#: Delay of the late rank, for which the others must wait.
_LATE_S = 0.02


def early_leavers(ctx: RankContext) -> list[WrongShare]:
    """Return the late ranks that this rank did not wait for in a barrier; the first ranks are late in turn.

    Only late ranks on this rank's node count, because only they share its clock.
    """
    import torch.distributed as dist

    found = []
    for late in range(min(ctx.world_size, MOST_ROOTS)):
        if ctx.group_rank == late:
            time.sleep(_LATE_S)
        entered = ctx.clock()
        with ctx.step("barrier", f"rank {ctx.ranks[late]} is late"):
            dist.barrier(group=ctx.group)
            left = ctx.clock()
            node, _, moment = ctx.exchange(f"{late}", f"{ctx.node} {entered}")[late].partition(" ")
        entered_by_late = float(moment)
        if int(node) == ctx.node and left < entered_by_late:
            case, due = f"rank {ctx.ranks[late]} late by {_LATE_S * 1e3:g} ms", entered_by_late - entered
            got = left - entered
            found.append(WrongShare(case=case, source=ctx.ranks[late], elements=1, of=1, expected=due, got=got))
    return found


def wrong_objects(ctx: RankContext) -> dict[str, list[WrongShare]]:
    """Return the wrong results of each object collective. Requires numpy, as torch's object collectives do."""
    import torch.distributed as dist

    ranks, rank, group = ctx.world_size, ctx.group_rank, ctx.group
    root = dist.get_global_rank(group, 0)
    objects = [{"rank": number, "name": f"Größe {number}", "sizes": list(range(number))} for number in range(ranks)]

    own, is_root = objects[rank], rank == 0
    taken: dict[str, Any] = {
        "all_gather": [None] * ranks,
        "broadcast": [objects[0] if is_root else None],
        "gather": [None] * ranks if is_root else None,
        "scatter": [None],
    }
    calls = {
        "all_gather": lambda: dist.all_gather_object(taken["all_gather"], own, group=group),
        "broadcast": lambda: dist.broadcast_object_list(taken["broadcast"], src=root, group=group),
        "gather": lambda: dist.gather_object(own, taken["gather"], dst=root, group=group),
        "scatter": lambda: dist.scatter_object_list(taken["scatter"], objects if is_root else [None], root, group),
    }
    due = {"all_gather": objects, "broadcast": objects[:1], "gather": objects * is_root, "scatter": [own]}
    found = {}
    for call, expected in due.items():
        name = f"{call}_object"
        with ctx.step(call, "objects"):
            calls[call]()
        sources = [0] if call == "scatter" else range(len(expected))
        found[name] = [
            WrongShare(case=name, source=ctx.ranks[source], elements=1, of=1, expected=1.0, got=0.0)
            for source, came, given in zip(sources, taken[call] or (), expected, strict=True)
            if came != given
        ]
    return found
