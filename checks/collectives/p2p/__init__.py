"""Point to point: does every pair of ranks exchange data, right, and how fast?

Raw input: none; each rank reports one line per peer, e.g.

    rank 0 - rank 3: right, latency 41 us, 1.9 GB/s

A collective uses some links and hides the rest; here every pair is tried alone, in rounds of
disjoint pairs, each under a deadline of its own. A pair that does not answer is the classic hang of
GPUs whose peer-to-peer path is blocked by ACS or the IOMMU: every tool calls it OK, and it stalls.
"""

from collections.abc import Iterator

from ddp_doctor.checks.collectives.p2p import rules
from ddp_doctor.facts.collectives import P2pFact
from ddp_doctor.knowledge.network.path_quality import rounds
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.exchanges import exchange, size_of_message

__all__ = ["CHECK", "probe"]


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
    rules=rules_in(rules),
    min_ranks=2,
    cost_s=1.0,
    deadline_s=20.0,  # on GPUs every pair is connected first
    measurements=measurements,
)
