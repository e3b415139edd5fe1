"""The smallest test that shows a fault between two ranks, and what the pairs without it reach."""

from collections.abc import Collection
from statistics import median_high

from ddp_doctor.facts.p2p import P2pFact
from ddp_doctor.model.finding import Showing
from ddp_doctor.model.recording import Recording

#: Bytes each way: large enough that a link's rate decides, and not what it takes to start.
EXCHANGED_BYTES = 16 << 20


def between(recording: Recording, ends: tuple[int, int], sick: Collection[tuple[int, int]] = ()) -> Showing:
    """An exchange between two ranks; ``sick`` are the pairs with a fault, lower rank first."""
    one, other = min(ends), max(ends)
    bad = {(one, other), *sick}
    across = _is_across(recording, (one, other))
    alike = [
        rate
        for pair, rate in _rates(recording).items()
        if pair not in bad and _is_across(recording, pair) == across
    ]
    return Showing(
        kind="exchange",
        ranks=(one, other),
        size_bytes=EXCHANGED_BYTES,
        healthy_bytes_per_s=median_high(alike) if alike else None,
        healthy=f"the other pairs {'between nodes' if across else 'within a node'}" if alike else "",
    )


def _rates(recording: Recording) -> dict[tuple[int, int], float]:
    """Bytes per second of each pair whose data arrived right."""
    return {
        (min(seen.rank, pair.peer), max(seen.rank, pair.peer)): pair.bandwidth_gb_per_s * 1e9
        for seen in recording.facts(P2pFact)
        if seen.rank is not None
        for pair in seen.fact.pairs
        if not pair.wrong_bytes
    }


def _is_across(recording: Recording, pair: tuple[int, int]) -> bool:
    world = recording.world
    return world is not None and world.node_of(pair[0]) != world.node_of(pair[1])
