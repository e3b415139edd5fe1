"""Stragglers: which rank is slow, by how much, since when, how certain that is, and why.

Raw input: none; it is measured on every rank, about seven times; the ranks of one machine take turns:

    rank 2   117000 products/s; 50 % of a loop's time is taken, 51 ms at most, 49 % by a quota; large files 1200,
             small pieces 30, four workers 110 MB/s; 1.1 and 1.2 GB/s with ranks 1 and 3

Why it matters: in DDP, every rank waits for the slowest in every step. The cause is usually on its host: a CPU quota,
another program, a slow mount. Ranks are also slow by chance, so one sample is not enough to report a rank.
"""

from collections.abc import Iterator
from statistics import median

from ddp_doctor.checks.collectives.stragglers import rules
from ddp_doctor.facts.collectives import StragglersFact
from ddp_doctor.knowledge import deadlines, stragglers
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import STRAGGLERS, Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.stragglers import RankSamples


def probe(ctx: RankContext) -> StragglersFact:
    """Take this rank's samples. Raises Skip if time or memory is short, Misused if no rank can read --data."""
    return RankSamples(ctx).measure()


def untested(recording: Recording) -> str:
    """Return why no rank could be reported as slow; "" if one could."""
    ranks = recording.facts(StragglersFact)
    if len(ranks) < stragglers.FEWEST_TO_JUDGE:
        return f"of {len(ranks)} ranks, none can be singled out; this needs at least {stragglers.FEWEST_TO_JUDGE}"
    waited = median(sample.waited_share or 0.0 for rank in ranks for sample in rank.fact.samples)
    if waited >= stragglers.BUSY_SHARE:
        return f"the hosts were busy: ranks waited {waited:.0%} of the time for a CPU, which can hide a slow rank"
    return ""


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield each rank's median rates of reading --data, per second."""
    for rank in recording.facts(StragglersFact):
        rates = grouped(rate for sample in rank.fact.samples for rate in sample.read_bytes_per_s.items())
        for name, of_name in rates.items():
            labels: dict[str, str | int | float] = {"rank": rank.rank or 0, "node": rank.node, "reads": name}
            yield Measurement(name="data_read_rate", value=median(of_name), unit="B/s", labels=labels)


CHECK = Check(
    id=STRAGGLERS,
    title="No rank is slower than its peers",
    where=Where.RANK,
    probe=probe,
    facts=(StragglersFact,),
    rules=rules_in(rules),
    level=Level.THOROUGH,
    min_ranks=2,
    cost_s=8.0,
    deadline_s=60.0,
    still_s=deadlines.STILL_S,
    measurements=measurements,
    untested=untested,
)
