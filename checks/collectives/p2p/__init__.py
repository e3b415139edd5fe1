"""Point to point: whether every pair of ranks exchanges data correctly, and how fast each way.

Raw input: none; each rank reports one line per peer, for example

    rank 0 - rank 3: right, latency 41 us, 1.9 GB/s, 2.3 GB/s one way from rank 3

Why it matters: a collective uses some links and hides the rest. Here every pair is tested, in rounds of disjoint pairs,
each with its own deadline. A pair that does not answer is the typical hang of GPUs whose peer-to-peer path is blocked
by ACS or the IOMMU: every tool reports OK, and the pair stalls.
"""

from collections.abc import Iterator

from ddp_doctor.checks.collectives.p2p import rules
from ddp_doctor.facts.collectives import P2pFact, PairResult
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.matrix_of_pairs import MatrixOfPairs
from ddp_doctor.wording.ranks import rank_of


def probe(ctx: RankContext) -> P2pFact:
    """Exchange a checked pattern with every peer, in rounds of disjoint pairs."""
    fact = MatrixOfPairs(ctx).measure()
    if not fact.pairs and not fact.skipped:
        raise Skip("no pair with this rank was measured because time ran out")
    return fact


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield latency and bandwidth of each pair from its lower rank, one-way rates, and the number of omitted pairs."""
    facts = recording.facts(P2pFact)
    for rank, pair in ((rank_of(at), pair) for at in facts for pair in at.fact.pairs):
        if rank < pair.peer:
            yield from _of_pair(rank, pair)
        if pair.received_gb_per_s is not None:
            labels: dict[str, str | int | float] = {"rank": pair.peer, "peer": rank, "bytes": pair.size_bytes}
            rate = pair.received_gb_per_s * 1e9
            yield Measurement(name="p2p_one_way", value=rate, unit="B/s", labels=labels)
    for name in ("not_measured", "not_alone"):
        left_out = max((getattr(at.fact, name) for at in facts), default=0)
        if left_out:
            yield Measurement(name=f"p2p_{name}", value=left_out, unit="pairs")


def _of_pair(rank: int, pair: PairResult) -> Iterator[Measurement]:
    labels: dict[str, str | int | float] = {"rank": rank, "peer": pair.peer}
    yield Measurement(name="p2p_latency", value=pair.latency_us / 1e6, unit="s", labels=labels)
    rates = {"bandwidth": pair.bandwidth_gb_per_s, "alone": pair.alone_gb_per_s, "together": pair.together_gb_per_s}
    for name, rate in rates.items():
        if rate is not None:
            labels = labels | {"bytes": pair.size_bytes}
            yield Measurement(name=f"p2p_{name}", value=rate * 1e9, unit="B/s", labels=labels)


def untested(recording: Recording) -> str:
    """Return why the check does not pass without any measured pair."""
    has_pairs = any(rank.fact.pairs for rank in recording.facts(P2pFact))
    return "" if has_pairs else "no pair of ranks was measured"


CHECK = Check(
    id="p2p",
    title="Every pair of ranks exchanges data",
    where=Where.RANK,
    probe=probe,
    facts=(P2pFact,),
    rules=rules_in(rules),
    min_ranks=2,
    cost_s=1.0,
    is_essential=True,
    deadline_s=20.0,  # on GPUs every pair is connected first
    measurements=measurements,
    untested=untested,
)
