"""Off state: what it holds instead, and the ranks that it is to be blamed on."""

from collections.abc import Iterator, Sequence

from ddp_doctor.facts.ddp.model_state import Buffers, OffState
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.stock_ddp import remedies
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.ranks import rank_culprits, ranks_at

#: What comes from rank 0 or, with broadcasting off, could only come from there.
_BROADCAST = ("parameters_off", "buffers_off", "reassigned_off", "kept_off")
_Seen = tuple[int, Buffers, tuple[OffState, ...]]  # rank, its fact, what is off there


def drafts(recording: Recording, field: str, what: str, wanted: str) -> Iterator[Draft]:
    """One draft for each way in which the state in ``field`` is off: own, another rank's, nobody's."""
    facts = [(seen.rank or 0, seen.fact) for seen in recording.facts(Buffers)]
    seen = [(rank, fact, getattr(fact, field) or ()) for rank, fact in facts]
    wrong = [one for one in seen if one[2]]
    groups: dict[str, list[_Seen]] = {}
    for one in wrong:
        groups.setdefault(_holds(one), []).append(one)
    for holds, group in groups.items():
        blamed = [rank for rank, _, _ in group] if _some_right(wrong, field in _BROADCAST) else []
        yield _draft(recording, group, f"{what} on {{ranks}}: {holds}", blamed, wanted)


def _holds(seen: _Seen) -> str:
    rank, _, off = seen
    origins = {one.from_rank for one in off if one.from_rank is not None}
    if origins == {rank}:
        return "they are the rank's own"
    if len(origins) == 1:
        return f"they are rank {origins.pop()}'s"
    return "no rank's explain them" if not origins else "they come from several ranks"


def _some_right(wrong: Sequence[_Seen], broadcast: bool) -> bool:
    """Whether some rank got it right: only then is an off rank to blame, else all are victims.

    Of a broadcast the source has nothing to receive, so its being right says nothing.
    """
    _, fact, _ = wrong[0]
    silent = {fact.source_rank} if broadcast else set()
    return len({rank for rank, _, _ in wrong} - silent) < fact.world_size - len(silent)


def _draft(
    recording: Recording, group: Sequence[_Seen], title: str, blamed: Sequence[int], wanted: str
) -> Draft:
    rank, fact, off = group[0]
    ranks = ranks_at(recording, [rank for rank, _, _ in group])
    names = sorted({one.name for _, _, offs in group for one in offs})
    return likely(
        rank_culprits(recording, Buffers, blamed),
        title.format(ranks=ranks, source=fact.source_rank),
        Evidence(
            text=f"worst element of {off[0].name} on rank {rank}",
            value=off[0].got,
            expected=off[0].expected,
            expected_from=wanted.format(source=fact.source_rank),
        ),
        *remedies(recording.world.backend if recording.world else "", "buffers"),
        detail=f"Off are {', '.join(names)} of the probe's model, on {ranks}; none of your code took part.",
    )
