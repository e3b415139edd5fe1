"""Clocks: nodes that take another time for the present."""

from collections.abc import Iterator, Mapping
from statistics import median_low

from ddp_doctor.facts.cluster import ConsistencyFact
from ddp_doctor.knowledge.thresholds import CLOCK_ERROR_S, CLOCKS_APART_S, CLOCKS_FAR_APART_S
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording import differences
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import host, node_culprit, node_pair


@rule("DD553", "clocks-apart", Severity.WARNING, ConsistencyFact)
def clocks_apart(recording: Recording) -> Iterator[Draft]:
    """Nodes whose clocks show another time.

    What it finds
        A clock more than 5 s from the middle one; information from 1 s on. It is measured against the head
        over the network, which errs by up to 0.2 s. Of two nodes nobody knows which one is wrong.

    Why it matters
        Logs of several nodes cannot be put in order; certificates and Kerberos tickets are refused; shared
        file systems and make take new files for old ones. Collectives do not mind.

    Remedy
        Let chrony or another NTP client set the clock, from the same source on all nodes.

    References
        https://chrony-project.org/documentation.html
    """
    facts = recording.facts(ConsistencyFact)
    clocks = {seen.node: seen.fact.clock_offset_s for seen in facts if seen.fact.clock_offset_s is not None}
    middle = median_low(clocks.values()) if clocks else 0.0
    off = {node: clock - middle for node, clock in clocks.items() if abs(clock - middle) > CLOCKS_APART_S}
    if not off:
        return
    worst = max(off, key=lambda node: abs(off[node]))
    apart = abs(off[worst])
    yield proved(
        _clock_culprits(recording, clocks, off),
        _clock_title(recording, clocks, off, worst),
        Evidence(
            text=f"clock of {host(recording, worst)} against the middle one",
            value=round(off[worst], 1),
            unit="s",
            expected=0,
            expected_from="clocks kept by NTP agree within milliseconds",
        ),
        remedy(
            "Let an NTP client keep the clocks, from the same source on all nodes",
            "chronyc tracking",
            "timedatectl status",
            cost="a clock that is set back makes files seem to come from the future",
        ),
        detail=f"Measured against the head's clock over the network, give or take {CLOCK_ERROR_S:g} s.",
        severity=Severity.WARNING if apart > CLOCKS_FAR_APART_S else Severity.INFO,
    )


def _clock_title(
    recording: Recording, clocks: Mapping[int, float], off: Mapping[int, float], worst: int
) -> str:
    if 2 * len(off) >= len(clocks):
        first, last = min(clocks, key=lambda node: clocks[node]), max(clocks, key=lambda node: clocks[node])
        apart = clocks[last] - clocks[first]
        return (
            f"The clock of {host(recording, last)} is {apart:.1f} s ahead of that of {host(recording, first)}"
        )
    way = "ahead of" if off[worst] > 0 else "behind"
    few = differences.hosts(recording, sorted(off))
    if len(off) == 1:
        return (
            f"The clock of {few} is {abs(off[worst]):.1f} s {way} those of the other {len(clocks) - 1} nodes"
        )
    return f"The clocks of {few} are up to {abs(off[worst]):.1f} s from those of the other nodes"


def _clock_culprits(
    recording: Recording, clocks: Mapping[int, float], off: Mapping[int, float]
) -> tuple[Culprit, ...]:
    """The few that are off; of two nodes the pair, for one of them is; else nobody."""
    if 2 * len(off) < len(clocks):
        return tuple(node_culprit(recording, node) for node in sorted(off))
    return (node_pair(recording, *sorted(clocks)),) if len(clocks) == 2 else ()
