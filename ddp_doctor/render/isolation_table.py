"""The rounds in which groups of nodes were tested, in a line each.

round  what               failed  seconds
    0  8 nodes alone           0      4.1
    1  all 8 nodes             1     12.0
  2-4  4 pairs                 1     36.2
"""

from collections import Counter
from itertools import groupby

from ddp_doctor.facts.collectives import GroupTest, IsolationFact
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.layout import Captioned, Table
from ddp_doctor.views.rates import FAILED

_TITLES = ("round", "what", "groups", "failed", "seconds")


def isolation_table(recording: Recording) -> Captioned | None:
    """None where no groups were tested; rounds that test the same groups have one line."""
    fact = recording.first(IsolationFact)
    if fact is None or not fact.tests:
        return None
    by_round = [list(tests) for _, tests in groupby(fact.tests, key=lambda test: test.round)]
    rows = []
    for _, alike in groupby(by_round, key=lambda tests: [test.nodes for test in tests]):
        rounds = list(alike)
        first, last = rounds[0][0].round, rounds[-1][0].round
        tests = [test for one in rounds for test in one]
        seconds = max(test.at_s + test.duration_s for test in tests) - min(test.at_s for test in tests)
        failed = sum(test.outcome in (*FAILED, "lost") for test in tests)
        number = f"{first}" if first == last else f"{first}-{last}"
        rows.append((number, _what(rounds[0]), f"{len(rounds[0])}", f"{failed}", f"{seconds:.1f}"))
    notes = (f"ended before all was settled: {fact.stopped}",) if fact.stopped else ()
    return Captioned("Groups of nodes, each tested by itself:", Table(_TITLES, rows, (0, 2, 3, 4)), notes)


def _what(tests: list[GroupTest]) -> str:
    sizes = Counter(len(test.nodes) for test in tests)
    return ", ".join({1: "nodes alone", 2: "pairs"}.get(size, f"{size} nodes together") for size in sorted(sizes))
