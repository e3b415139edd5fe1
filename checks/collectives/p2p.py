"""Point to point: does every pair of ranks exchange data correctly, and how fast?

Raw input: none; each rank reports one line per peer, e.g.

    rank 0 - rank 3: right, latency 41 us, 1.9 GB/s

A collective uses some links and hides the rest; here every pair is tried alone, in rounds of
disjoint pairs, each under a deadline of its own. A pair that does not answer is the classic hang of
GPUs whose peer-to-peer path is blocked by ACS or the IOMMU: every tool reports OK, and the pair stalls.
"""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median_high

from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.knowledge.network.path_quality import rounds
from ddp_doctor.knowledge.thresholds import SLOW_PAIR_RATIO
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.exchanges import exchange, size_of_message
from ddp_doctor.remedies.kinds import by_administrator, remedy
from ddp_doctor.remedies.nccl import DISABLE_P2P, REPAIR_PATH, keep_near_p2p
from ddp_doctor.views.reproducers import between
from ddp_doctor.views.transports import log_of, places, used_within
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, likely, proved
from ddp_doctor.wording.nodes import host
from ddp_doctor.wording.ranks import capital, pair_culprit, rank_at, rank_culprit, ranks_at


def probe(ctx: RankContext) -> P2pFact:
    """Exchange a checked pattern with every peer, in rounds of disjoint pairs."""
    results, skipped = [], []
    size = size_of_message(ctx)
    for pairs in rounds(ctx.world_size):
        mine = next((pair for pair in pairs if ctx.group_rank in pair), None)
        if mine is None:
            continue  # an odd world leaves one rank out of each round
        peer = mine[1] if mine[0] == ctx.group_rank else mine[0]
        original = ctx.ranks[peer]
        if (min(ctx.rank, original), max(ctx.rank, original)) in ctx.skip_pairs:
            skipped.append(original)
        else:
            results.append(exchange(ctx, peer, original, size))
    return P2pFact(pairs=tuple(results), skipped=tuple(skipped))


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Latency and bandwidth of each pair, as its lower rank saw it."""
    for rank in recording.facts(P2pFact):
        for pair in rank.fact.pairs:
            if rank.rank is not None and rank.rank < pair.peer:
                labels: dict[str, str | int | float] = {"rank": rank.rank, "peer": pair.peer}
                yield Measurement(name="p2p_latency", value=pair.latency_us / 1e6, unit="s", labels=labels)
                rate = pair.bandwidth_gb_per_s * 1e9
                labels = labels | {"bytes": pair.size_bytes}
                yield Measurement(name="p2p_bandwidth", value=rate, unit="B/s", labels=labels)


@rule("DD606", "pair-of-ranks-corrupts-data", Severity.ERROR, P2pFact)
def pair_of_ranks_corrupts_data(recording: Recording) -> Iterator[Draft]:
    """A pair of ranks between which bytes arrive changed.

    Finds: Bytes that differ from the pattern the peer is known to send, pair by pair.
    Why: Gradients sent over this link are silently wrong.
    Remedy: GPUs: NCCL_P2P_DISABLE=1 sends the data through the host and proves the cause; consumer GPUs with forced
        peer-to-peer are the usual case. Else look for memory errors.
    See: NVIDIA/nccl-tests#117
    """
    wrong = {
        (pair.peer, rank.rank or 0): pair
        for rank in recording.facts(P2pFact)
        for pair in rank.fact.pairs
        if pair.wrong_bytes
    }
    common = common_end(wrong)
    if common is not None:
        peers = {rank for pair in wrong for rank in pair} - {common}
        yield proved(
            (rank_culprit(recording, common),),
            f"Data that {rank_at(recording, common)} exchanges with {ranks_at(recording, peers)} arrives wrong",
            (_wrong_bytes(*ends, pair) for ends, pair in list(wrong.items())[:LINES_OF_EVIDENCE]),
            *_without_p2p(recording, wrong),
            detail="Pairs without this rank were tested in the same way, and their data arrive right.",
            reproduced_by=between(recording, next(iter(wrong)), _ends(wrong)),
        )
        return
    for (sender, receiver), pair in list(wrong.items())[:LINES_OF_EVIDENCE]:
        yield proved(
            (pair_culprit(recording, receiver, sender),),
            f"Data from {rank_at(recording, sender)} arrives wrong on {rank_at(recording, receiver)}:"
            f" {pair.wrong_bytes} of {pair.size_bytes} bytes",
            _wrong_bytes(sender, receiver, pair),
            *_without_p2p(recording, [(sender, receiver)]),
            detail=f"All pairs were tested in the same way; {len(wrong)} of their directions are wrong.",
            reproduced_by=between(recording, (sender, receiver), _ends(wrong)),
        )


def _ends(wrong: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(min(pair), max(pair)) for pair in wrong]


def _wrong_bytes(sender: int, receiver: int, pair: PairResult) -> Evidence:
    return Evidence(
        text=f"bytes from rank {sender} that differ from its pattern on rank {receiver}",
        value=pair.wrong_bytes,
        unit="B",
        expected=0,
        expected_from="the pattern is a function of the sender's rank",
    )


def _without_p2p(recording: Recording, pairs: Iterable[tuple[int, int]]) -> tuple[Remedy, ...]:
    """The proof for GPUs of one node; between nodes nothing goes peer to peer."""
    world = recording.world
    if world is not None and all(world.node_of(first) != world.node_of(second) for first, second in pairs):
        return (
            remedy(
                "Look for errors of the NICs and of the memory on both nodes; try another NIC",
                "ethtool -S IFACE | grep -i -e err -e crc",
                "nvidia-smi -q -d ECC",
            ),
        )
    if not recording.on_nccl:
        return (_LOOK_AT_MEMORY,)
    return (
        DISABLE_P2P.model_copy(
            update={"summary": "Try host memory in place of direct copies: if data is then right, P2P is to blame"}
        ),
        REPAIR_PATH,
        _LOOK_AT_MEMORY,
    )


_LOOK_AT_MEMORY = by_administrator(
    "Look for memory errors of the GPUs and of the host",
    "nvidia-smi -q -d ECC",
    "sudo dmesg | grep -i -e xid -e edac -e mce",
)


def common_end(pairs: Iterable[tuple[int, int]]) -> int | None:
    """The rank that is part of all these pairs, if it has more than one peer in them."""
    each = [frozenset(pair) for pair in pairs]
    shared = frozenset.intersection(*each) if len(set(each)) > 1 else frozenset()
    return next(iter(shared), None)


_COMPARE_LINKS = remedy(
    "Compare link type, PCIe width and NUMA node with those of the faster pairs",
    "nvidia-smi topo -m",
    "nvidia-smi -q -d PCIE",
)


#: Both RDMA devices and interfaces are files of the kernel, whatever tools a node has.
_COMPARE_NICS = remedy(
    "Compare the NICs that NCCL uses on these nodes, their speed and errors, with those of the others",
    "grep -s . /sys/class/infiniband/*/ports/*/rate /sys/class/net/*/speed",
    "rdma statistic show",
    "ip -s link",
)


#: Bandwidth in GB/s by pair of ranks, the lower one first.
_Rates = dict[tuple[int, int], float]


@rule("DD607", "pair-of-ranks-is-slow", Severity.WARNING, P2pFact)
def pair_of_ranks_is_slow(recording: Recording) -> Iterator[Draft]:
    """A pair of GPUs several times slower than the typical pair of its kind.

    Finds: Pairs whose bandwidth is a small fraction of the median pair's: of those within a node, or of those between
        nodes, which go over the network. Only with NCCL, where links are hardware; pairs of CPU processes share cores
        and differ by chance.
    Why: A ring is as fast as its slowest link.
    Remedy: Where the slow pairs copy directly over a longer path than all others, an NCCL_P2P_LEVEL that leaves them
        out. Compare the link types in `nvidia-smi topo -m` and the PCIe width under load; between nodes the NICs and
        their cables. Which NIC NCCL took on a node stands in the evidence, from its own log.
    See: docs/explanation/measurements.md
    """
    world = recording.world
    if world is None or world.backend != "nccl":
        return
    kinds: dict[bool, _Rates] = {False: {}, True: {}}  # the pairs within a node, and those across nodes
    for rank in recording.facts(P2pFact):
        for pair in rank.fact.pairs:
            ends = (min(rank.rank or 0, pair.peer), max(rank.rank or 0, pair.peer))
            kinds[world.node_of(ends[0]) != world.node_of(ends[1])][ends] = pair.bandwidth_gb_per_s
    for across, rates in kinds.items():
        typical = median_high(rates.values()) if len(rates) > 2 else 0.0
        slow = sorted(pair for pair, rate in rates.items() if rate * SLOW_PAIR_RATIO < typical)
        common = common_end(slow)
        alone = common is not None and all(pair in slow for pair in rates if common in pair)
        together = slow and (alone or len(slow) > LINES_OF_EVIDENCE)
        for pairs in [slow] if together else [[pair] for pair in slow]:
            yield _slow_draft(recording, pairs, rates, across=across)


def _slow_draft(recording: Recording, pairs: Sequence[tuple[int, int]], rates: _Rates, *, across: bool) -> Draft:
    typical, worst = median_high(rates.values()), min(rates[pair] for pair in pairs)
    common = common_end(pairs)
    if common is not None:
        peers = {rank for pair in pairs for rank in pair} - {common}
        who = f"{rank_at(recording, common)} and each of {ranks_at(recording, peers)} exchange"
    elif len(pairs) == 1:
        who = f"{rank_at(recording, pairs[0][0])} and {rank_at(recording, pairs[0][1])} exchange"
    else:
        who = f"{len(pairs)} pairs of ranks exchange"
    # NVLink is never slower than host memory; a link of it that is down is to be repaired.
    limit = None if across else _limit_below(recording, pairs)
    summary = f"Leave P2P to near GPUs, up to {limit}: the slow pairs then go through host memory"
    around = [] if limit is None else [keep_near_p2p(limit).model_copy(update={"summary": summary})]
    links = [pair_culprit(recording, *pair) for pair in pairs]
    return likely(
        tuple(links) if common is None else (rank_culprit(recording, common),),
        f"{capital(who)} {worst:.2f} GB/s, the typical pair {typical:.2f} GB/s",
        tuple(
            Evidence(
                text=f"best of the exchanges between ranks {first} and {second}",
                value=round(rates[first, second], 3),
                unit="GB/s",
                expected=round(typical, 3),
                expected_from=f"median over all pairs {'across nodes' if across else 'within a node'} of this run",
            )
            for first, second in pairs[:LINES_OF_EVIDENCE]
        )
        + (tuple(_network_evidence(recording, pairs)) if across else ()),
        *((_COMPARE_NICS,) if across else (*around, _COMPARE_LINKS)),
        detail=f"They are slower than other pairs {'across nodes' if across else 'within a node'}.",
        reproduced_by=None if across else between(recording, pairs[0], pairs),
    )


def _limit_below(recording: Recording, slow: Sequence[tuple[int, int]]) -> str | None:
    """The NCCL_P2P_LEVEL that takes P2P from the slow pairs, and from no other that has it, by NCCL's log."""
    taken: dict[tuple[int, int], str] = {}
    for place in places(recording):
        joined = {(first, second): code for first, second, code in place.fact.gpu_pairs()}
        for way in used_within(recording, place):
            if way.kinds() == {"P2P"}:
                taken[way.ranks] = joined[way.gpus]
    if not set(slow) <= set(taken):
        return None
    bad = {taken[pair] for pair in slow}
    good = {code for pair, code in taken.items() if pair not in slow}
    fits = [
        level
        for level in ("NVL", "PIX", "PXB", "PHB")
        if all(link_codes.allowed(code, level) for code in good)
        and not any(link_codes.allowed(code, level) for code in bad)
    ]
    return fits[0] if fits else None


def _network_evidence(recording: Recording, pairs: Sequence[tuple[int, int]]) -> Iterator[Evidence]:
    world = recording.world
    nodes = sorted({world.node_of(rank) for pair in pairs for rank in pair}) if world else []
    for node in nodes[:LINES_OF_EVIDENCE]:
        log = log_of(recording, node)
        devices = ", ".join(log.used_hcas())
        if log.network:
            text = f"NCCL's log on {host(recording, node)}: {log.network}{f', {devices}' if devices else ''}"
            yield Evidence(text=text)


CHECK = Check(
    id="p2p",
    title="Every pair of ranks exchanges data",
    where=Where.RANK,
    probe=probe,
    facts=(P2pFact,),
    rules=(pair_of_ranks_corrupts_data, pair_of_ranks_is_slow),
    min_ranks=2,
    cost_s=1.0,
    is_essential=True,
    deadline_s=20.0,  # on GPUs every pair is connected first
    measurements=measurements,
)
