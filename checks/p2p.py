"""Point to point: does every pair of ranks exchange data, right, and how fast?

Raw input: none; each rank reports one line per peer, e.g.

    rank 0 - rank 3: right, latency 41 us, 1.9 GB/s

A collective uses some links and hides the rest; here every pair is tried alone, in rounds of
disjoint pairs, each under a deadline of its own. A pair that does not answer is the classic hang of
GPUs whose peer-to-peer path is blocked by ACS or the IOMMU: every tool calls it OK, and it stalls.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median, median_high
from typing import TYPE_CHECKING, ClassVar

from ddp_doctor.knowledge.deadlines import FIRST_NCCL_S, PAIR_S
from ddp_doctor.knowledge.pairs import rounds
from ddp_doctor.knowledge.payload import CROWD
from ddp_doctor.knowledge.thresholds import SLOW_PAIR_RATIO
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Level, Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.gpus import LINES_OF_EVIDENCE
from ddp_doctor.phrases.ranks import capital, pair_culprit, rank_at, rank_culprit, ranks_at

if TYPE_CHECKING:
    import torch

MIB = 1 << 20


class PairResult(Frozen):
    """What one rank saw of one peer (original rank). ``wrong_bytes`` counts bytes received wrong."""

    peer: int
    wrong_bytes: int
    latency_us: float  # median of exchanges of 4 bytes, both ways at once
    bandwidth_gb_per_s: float  # best of the exchanges, one way
    size_bytes: int


class P2pFact(Fact):
    """One rank's exchanges with all its peers."""

    KIND: ClassVar[str] = "p2p/1"

    pairs: tuple[PairResult, ...]
    skipped: tuple[int, ...] = ()  # peers of pairs that hung in an earlier trial


def probe(ctx: RankContext) -> P2pFact:
    """Exchange a checked pattern with every peer, in rounds of disjoint pairs."""
    results, skipped = [], []
    size = _size(ctx)
    for pairs in rounds(ctx.world_size):
        mine = next((pair for pair in pairs if ctx.group_rank in pair), None)
        if mine is None:
            continue  # an odd world leaves one rank out of each round
        peer = mine[1] if mine[0] == ctx.group_rank else mine[0]
        original = ctx.ranks[peer]
        if (min(ctx.rank, original), max(ctx.rank, original)) in ctx.skip_pairs:
            skipped.append(original)
        else:
            results.append(_exchange(ctx, peer, original, size))
    return P2pFact(pairs=tuple(results), skipped=tuple(skipped))


def _size(ctx: RankContext) -> int:
    """Bytes a way: all pairs of a large world share the machine and the check's deadline."""
    if ctx.world_size > CROWD:
        return 64 * 1024
    if ctx.device.startswith("cuda"):
        return {Level.QUICK: 16 * MIB, Level.STANDARD: 64 * MIB, Level.THOROUGH: 256 * MIB}[ctx.level]
    return {Level.QUICK: MIB, Level.STANDARD: 4 * MIB, Level.THOROUGH: 16 * MIB}[ctx.level]


def _exchange(ctx: RankContext, peer: int, original: int, size: int) -> PairResult:
    import torch

    deadline_s = _deadline(ctx)
    sent = _pattern(ctx.rank, size, ctx.device)
    received = torch.zeros_like(sent)
    with ctx.step("send_recv", f"uint8 [{size}]", peers=(original,), deadline_s=deadline_s):
        first = _timed(ctx, sent, received, peer)
        wrong = int((received != _pattern(original, size, ctx.device)).sum().item())
        latency = _latency(ctx, peer)
        again = _times(ctx, sent, received, peer)
    return PairResult(
        peer=original,
        wrong_bytes=wrong,
        latency_us=latency * 1e6,
        bandwidth_gb_per_s=size / min([first, *again]) / 1e9,
        size_bytes=size,
    )


def _deadline(ctx: RankContext) -> float:
    """How long a pair may take, its peer's lateness included.

    A peer still stands in its earlier pairs, and longer on a crowded machine: the check's deadline has
    grown with the ranks per core, and a quarter of what is left of it grows along.
    """
    # NCCL connects two ranks at their first transfer, within the communicator that the group has.
    least = FIRST_NCCL_S if ctx.backend == "nccl" else PAIR_S
    return min(max(least, ctx.remaining() / 4), max(ctx.remaining(), 1.0))


def _pattern(rank: int, size: int, device: str) -> "torch.Tensor":
    """Bytes that differ by sender and by position, so that a shifted or stale block shows."""
    import torch

    block = (torch.arange(65521, dtype=torch.int32) * (2 * rank + 3) + rank).to(torch.uint8)
    return block.repeat(size // len(block) + 1)[:size].to(device)


def _swap(sent: "torch.Tensor", received: "torch.Tensor", peer: int) -> None:
    import torch.distributed as dist

    operations = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _timed(ctx: RankContext, sent: "torch.Tensor", received: "torch.Tensor", peer: int) -> float:
    """Seconds of one exchange, until the data is here; on a GPU ``wait`` returns before it is."""
    started = ctx.clock()
    _swap(sent, received, peer)
    received[0].item()
    return ctx.clock() - started


def _latency(ctx: RankContext, peer: int) -> float:
    import torch

    sent = torch.zeros(1, device=ctx.device)
    received = torch.zeros(1, device=ctx.device)
    times = [_timed(ctx, sent, received, peer) for _ in range(1 if ctx.world_size > CROWD else 5)]
    return median(times)


def _times(ctx: RankContext, sent: "torch.Tensor", received: "torch.Tensor", peer: int) -> list[float]:
    """Seconds of each further exchange; none in a large world, where the first must do."""
    again = 0 if ctx.world_size > CROWD else 2 if ctx.level is Level.QUICK else 4
    return [_timed(ctx, sent, received, peer) for _ in range(again)]


@rule("DD606", "pair-of-ranks-corrupts-data", Severity.ERROR, P2pFact)
def corrupts(recording: Recording) -> Iterator[Draft]:
    """A pair of ranks between which bytes arrive changed.

    What it finds
        Bytes that differ from the pattern the peer is known to send, pair by pair.

    Why it matters
        Gradients sent over this link are silently wrong.

    Remedy
        GPUs: NCCL_P2P_DISABLE=1 sends the data through the host and proves the cause; consumer GPUs
        with forced peer-to-peer are the usual case. Else look for memory errors.

    References
        NVIDIA/nccl-tests#117
    """
    wrong = {
        (pair.peer, seen.rank or 0): pair
        for seen in recording.facts(P2pFact)
        for pair in seen.fact.pairs
        if pair.wrong_bytes
    }
    common = _common_end(wrong)
    if common is not None:
        yield _corrupts_all(recording, common, wrong)
        return
    for (sender, receiver), pair in list(wrong.items())[:LINES_OF_EVIDENCE]:
        yield Draft(
            title=f"Data from {rank_at(recording, sender)} arrives wrong on {rank_at(recording, receiver)}:"
            f" {pair.wrong_bytes} of {pair.size_bytes} bytes",
            detail=f"All pairs were tested in the same way; {len(wrong)} of their directions are wrong.",
            confidence=Confidence.PROVED,
            culprits=(pair_culprit(recording, receiver, sender),),
            evidence=(_wrong_bytes(sender, receiver, pair),),
            remedies=_without_p2p(recording, [(sender, receiver)]),
        )


def _common_end(pairs: Iterable[tuple[int, int]]) -> int | None:
    """The one rank that takes part in all of these pairs, where it has more than one peer in them."""
    each = [frozenset(pair) for pair in pairs]
    shared = frozenset.intersection(*each) if len(set(each)) > 1 else frozenset()
    return next(iter(shared), None)


def _corrupts_all(recording: Recording, common: int, wrong: Mapping[tuple[int, int], PairResult]) -> Draft:
    peers = {rank for pair in wrong for rank in pair} - {common}
    return Draft(
        title=f"Data that {rank_at(recording, common)} exchanges with {ranks_at(recording, peers)} arrives wrong",
        detail="Pairs without this rank were tested in the same way, and their data arrive right.",
        confidence=Confidence.PROVED,
        culprits=(rank_culprit(recording, common),),
        evidence=tuple(_wrong_bytes(*ends, pair) for ends, pair in list(wrong.items())[:LINES_OF_EVIDENCE]),
        remedies=_without_p2p(recording, wrong),
    )


def _wrong_bytes(sender: int, receiver: int, pair: PairResult) -> Evidence:
    return Evidence(
        check="p2p",
        text=f"bytes from rank {sender} that differ from its pattern on rank {receiver}",
        value=pair.wrong_bytes,
        unit="B",
        expected=0,
        expected_from="the pattern is a function of the sender's rank",
    )


def _without_p2p(recording: Recording, pairs: Iterable[tuple[int, int]]) -> tuple[Remedy, ...]:
    """The proof for GPUs of one node; between nodes nothing goes peer to peer."""
    world = recording.world
    if world is not None and all(world.node_of(one) != world.node_of(other) for one, other in pairs):
        return (
            Remedy(
                summary="Look for errors of the NICs and of the memory on both nodes; try another NIC",
                commands=("ethtool -S IFACE | grep -i -e err -e crc", "nvidia-smi -q -d ECC"),
                scope="node",
            ),
        )
    return (
        Remedy(
            summary="Repeat without GPU peer-to-peer transfers to prove the cause",
            commands=("NCCL_P2P_DISABLE=1 ddp-doctor run --only p2p",),
            cost="none: a diagnosis, not a cure",
        ),
    )


@rule("DD607", "pair-of-ranks-is-slow", Severity.WARNING, P2pFact)
def slow_pair(recording: Recording) -> Iterator[Draft]:
    """A pair of GPUs several times slower than the typical pair of its kind.

    What it finds
        Pairs whose bandwidth is a small fraction of the median pair's: of those within a node, or of those
        between nodes, which go over the network. Only with NCCL, where links are hardware; pairs of CPU
        processes share cores and differ by chance.

    Why it matters
        A ring is as fast as its slowest link.

    Remedy
        Compare the link types in `nvidia-smi topo -m` and the PCIe width under load; between nodes the
        NICs and their cables.

    References
        docs/explanation/measurements.md
    """
    if recording.world is None or recording.world.backend != "nccl":
        return
    for across, rates in _rates_by_kind(recording).items():
        slow = _slow(rates)
        common = _common_end(slow)
        alone = common is not None and all(pair in slow for pair in rates if common in pair)
        together = slow and (alone or len(slow) > LINES_OF_EVIDENCE)
        for pairs in [slow] if together else [[pair] for pair in slow]:
            yield _slow_draft(recording, pairs, rates, across=across)


#: Bandwidth in GB/s by pair of ranks, the lower one first.
_Rates = dict[tuple[int, int], float]


def _rates_by_kind(recording: Recording) -> dict[bool, _Rates]:
    """The pairs within a node, and those across nodes (True)."""
    world = recording.world
    kinds: dict[bool, _Rates] = {False: {}, True: {}}
    for seen in recording.facts(P2pFact):
        for pair in seen.fact.pairs:
            ends = (min(seen.rank or 0, pair.peer), max(seen.rank or 0, pair.peer))
            across = world is not None and world.node_of(ends[0]) != world.node_of(ends[1])
            kinds[across][ends] = pair.bandwidth_gb_per_s
    return kinds


def _slow(rates: _Rates) -> list[tuple[int, int]]:
    if len(rates) < 3:
        return []
    typical = median_high(rates.values())
    return sorted(pair for pair, rate in rates.items() if rate * SLOW_PAIR_RATIO < typical)


def _slow_draft(
    recording: Recording, pairs: Sequence[tuple[int, int]], rates: _Rates, *, across: bool
) -> Draft:
    typical, worst = median_high(rates.values()), min(rates[pair] for pair in pairs)
    common = _common_end(pairs)
    if common is not None:
        peers = {rank for pair in pairs for rank in pair} - {common}
        who = f"{rank_at(recording, common)} and each of {ranks_at(recording, peers)} exchange"
    elif len(pairs) == 1:
        who = f"{rank_at(recording, pairs[0][0])} and {rank_at(recording, pairs[0][1])} exchange"
    else:
        who = f"{len(pairs)} pairs of ranks exchange"
    links = [pair_culprit(recording, *pair) for pair in pairs]
    return Draft(
        title=f"{capital(who)} {worst:.2f} GB/s, the typical pair {typical:.2f} GB/s",
        detail=f"They are slower than other pairs {'across nodes' if across else 'within a node'}.",
        culprits=tuple(links) if common is None else (rank_culprit(recording, common),),
        evidence=tuple(
            Evidence(
                check="p2p",
                text=f"best of the exchanges between ranks {one} and {other}",
                value=round(rates[one, other], 3),
                unit="GB/s",
                expected=round(typical, 3),
                expected_from=f"median over all pairs {'across nodes' if across else 'within a node'} of this run",
            )
            for one, other in pairs[:LINES_OF_EVIDENCE]
        ),
        remedies=(_COMPARE_NICS if across else _COMPARE_LINKS,),
    )


_COMPARE_LINKS = Remedy(
    summary="Compare link type, PCIe width and NUMA node with those of the faster pairs",
    commands=("nvidia-smi topo -m", "nvidia-smi -q -d PCIE"),
    scope="node",
)
_COMPARE_NICS = Remedy(
    summary="Compare the NICs that NCCL uses on these nodes, their speed and errors, with those of the others",
    commands=("NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=NET ddp-doctor run --only p2p", "ethtool IFACE"),
    scope="node",
)


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Latency and bandwidth of each pair, as its lower rank saw it."""
    for seen in recording.facts(P2pFact):
        for pair in seen.fact.pairs:
            if seen.rank is not None and seen.rank < pair.peer:
                labels: dict[str, str | int | float] = {"rank": seen.rank, "peer": pair.peer}
                yield Measurement(name="p2p_latency", value=pair.latency_us / 1e6, unit="s", labels=labels)
                rate = pair.bandwidth_gb_per_s * 1e9
                labels = labels | {"bytes": pair.size_bytes}
                yield Measurement(name="p2p_bandwidth", value=rate, unit="B/s", labels=labels)


CHECK = Check(
    id="p2p",
    title="Every pair of ranks exchanges data",
    where=Where.RANK,
    probe=probe,
    facts=(P2pFact,),
    rules=(corrupts, slow_pair),
    min_ranks=2,
    cost_s=1.0,
    deadline_s=20.0,  # on GPUs every pair is connected first
    measurements=measurements,
)
