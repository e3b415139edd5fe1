"""The calls of a trial's ranks: from torch's flight recorder, or as the ranks announced them."""

from collections.abc import Iterator, Sequence

from ddp_doctor.engine.waits.standings import Call, Group, Standing
from ddp_doctor.model.trial import FlightEntry, RankEvidence


def recorded(ranks: Sequence[RankEvidence]) -> list[Standing]:
    """Return the recorder's calls, which ranks really enqueued; shapes and types must be equal."""
    names = sorted({entry.group for rank in ranks for entry in rank.flight})
    groups = {name: Group(name) for name in names}
    return [
        Standing(rank.rank, "waits", calls=tuple(call_of(entry, groups[entry.group]) for entry in rank.flight))
        for rank in ranks
    ]


def call_of(entry: FlightEntry, group: Group) -> Call:
    """Return the call of one entry of the recorder."""
    return Call(group, entry.seq, entry.op, entry.sizes, entry.dtypes, (entry.op, entry.sizes, entry.dtypes))


def announced(ranks: Sequence[RankEvidence]) -> Iterator[Standing]:
    """Yield the step of each rank, without a recorder, unless only some ranks take part in it."""
    checks = {step.check: Group(step.check) for rank in ranks for step in rank.steps}
    for rank in ranks:
        step = rank.open_step
        if step is not None and not step.peers:
            _, seq = step.key
            call = Call(checks[step.check], seq, step.name, alike=(step.name, step.detail))
            yield Standing(rank.rank, "waits", calls=(call,))
