"""Time lines of ranks: when they entered and left steps, and their final step; with many ranks, equal ones in one row.

Each node counts the seconds of a trial separately, so times of two nodes may differ by some hundredths.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence

from ddp_doctor.knowledge.endings import signal_name
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.model.trial import RankEvidence, Step, TrialRecord
from ddp_doctor.parse.frames import of_the_job
from ddp_doctor.render.text import amount, one_line
from ddp_doctor.wording.nodes import hosts
from ddp_doctor.wording.ranks import STATES, cause, rank_list, short

#: Maximum number of ranks with a row each.
_EACH = 16
_MOST_ROWS = 40
_MOST_TRIALS = 4
#: Number of steps of a rank to draw, the last ones.
_MOST_STEPS = 40
#: In percent of the width: a bar is never thinner, and its name fits in one that is wider.
_THINNEST, _FITS_A_LETTER = 0.6, 1.4

_OUTCOMES = {
    "finished": "All ranks finished",
    "stuck": "The ranks hung",
    "broken": "A rank failed",
    "slow": "The ranks were too slow",
    "interrupted": "Interrupted",
}


Part = dict[str, object]
#: The codes of the errors that blame a rank.
Blamed = Mapping[int, Sequence[str]]


def timelines(report: Report, recording: Recording) -> Iterator[Part]:
    """Yield the time lines of the trials that did not finish, or of the first trial if all finished."""
    trials = [trial for trial in recording.trials if any(rank.steps or not rank.done for rank in trial.evidence)]
    failed = [trial for trial in trials if trial.outcome != "finished"]
    blamed = grouped(
        (rank, finding.code)
        for finding in report.findings
        if finding.severity.value == "error"
        for culprit in finding.culprits
        if culprit.kind in ("rank", "pair")
        for rank in (culprit.rank, culprit.peer_rank)
        if rank is not None
    )
    for trial in (failed or trials[:1])[:_MOST_TRIALS]:
        yield _timeline(recording, trial, blamed if trial in failed else {})


def _timeline(recording: Recording, trial: TrialRecord, blamed: Blamed) -> Part:
    start = min((step.entered_at for rank in trial.evidence for step in rank.steps[-_MOST_STEPS:]), default=0.0)
    moments = [moment for rank in trial.evidence for moment in _moments(rank, trial.waited_s)]
    end = max([*moments, start + 1e-6])
    groups = _alike(trial.evidence, blamed)
    groups.sort(key=lambda ranks: (ranks[0].rank not in blamed, ranks[0].rank))
    in_check = f" in the check {trial.judged_check}" if trial.judged_check else ""
    waited = f", evaluated after {amount(round(trial.waited_s, 2), 's')} of waiting" * bool(trial.waited_s)
    several = len({*trial.lost_nodes, *(rank.node for rank in trial.evidence)}) > 1
    rows = list(_rows_of_silent_ranks(recording, trial, blamed))
    for ranks in groups[:_MOST_ROWS]:
        numbers = [rank.rank for rank in ranks]
        bars, words = list(_bars(ranks, start, end)), list(_sentences(ranks[0], end))
        where = hosts(recording, [rank.node for rank in ranks]) if several else ""
        count = f" ({len(numbers)} ranks)" if len(numbers) > 2 else ""
        rows.append(_row(f"{rank_list(numbers)}{count}", where, _codes(numbers, blamed), bars, words))
    return {
        "title": f"{_OUTCOMES[trial.outcome]}{in_check} (trial {trial.trial}{waited})",
        "start": _seconds(start),
        "end": _seconds(end),
        "rows": rows,
        "left": len(groups[_MOST_ROWS:]),
        "several_nodes": several,
    }


def _row(ranks: str, where: str, codes: Sequence[str], bars: Sequence[Part], words: Sequence[str]) -> Part:
    """Return the row of ranks with the same history."""
    return {"ranks": ranks, "where": where, "codes": codes, "bars": bars, "words": words}


def _codes(ranks: Sequence[int], blamed: Blamed) -> list[str]:
    return list(dict.fromkeys(code for rank in ranks for code in blamed.get(rank, ())))


def _rows_of_silent_ranks(recording: Recording, trial: TrialRecord, blamed: Blamed) -> Iterator[Part]:
    world = recording.world
    known = {rank.rank for rank in trial.evidence}
    by_node = grouped((world.node_of(rank) if world else 0, rank) for rank in trial.ranks if rank not in known)
    for node, ranks in by_node.items():
        lost = "Contact with its node was lost" if node in trial.lost_nodes else "It left no data"
        yield _row(rank_list(ranks), hosts(recording, [node]), _codes(ranks, blamed), [], [lost])


def _moments(rank: RankEvidence, waited_s: float) -> Iterator[float]:
    """Yield the times of a rank's events, in seconds of the trial; a waiting rank waits until the trial was judged."""
    for step in rank.steps:
        yield step.left_at if step.left_at is not None else _ended_at(rank, step.entered_at + waited_s)
    if rank.raised is not None:
        yield rank.raised.at
    if rank.exited_at is not None:
        yield rank.exited_at


def _ended_at(rank: RankEvidence, judged: float) -> float:
    """Return the end of a rank's last step: when the rank raised or exited, or when the trial was judged."""
    return rank.raised.at if rank.raised is not None else rank.exited_at if rank.exited_at is not None else judged


def _alike(ranks: Sequence[RankEvidence], blamed: Blamed) -> list[list[RankEvidence]]:
    if len(ranks) <= _EACH:
        return [[rank] for rank in ranks]
    groups = grouped(((_story(rank, whole=True), rank.rank in blamed), rank) for rank in ranks)
    if len(groups) > _MOST_ROWS:
        groups = grouped(((_story(rank, whole=False), rank.rank in blamed), rank) for rank in ranks)
    return list(groups.values())


def _story(rank: RankEvidence, *, whole: bool) -> Hashable:
    """Return the key of equal ranks: their end and its step; with ``whole``, all earlier steps as well."""
    steps = [(step.check, step.name, step.seq, step.left_at is None) for step in rank.steps[-_MOST_STEPS:]]
    ended = (rank.began, rank.done, rank.exit_code, rank.raised and rank.raised.type)
    return (tuple(steps), ended, rank.state, rank.stack[-1:]) if whole else (tuple(steps[-1:]), ended)


def _bars(ranks: Sequence[RankEvidence], start: float, end: float) -> Iterator[Part]:
    """Yield the steps of the first rank, each from its first entry to its last exit among these ranks.

    In percent of the width, with a label if it fits.
    """
    first = ranks[0].steps[-_MOST_STEPS:]
    same = {(step.check, step.seq, step.name): [step] for step in first}
    for rank in ranks[1:]:
        for step in rank.steps[-_MOST_STEPS:]:
            same.get((step.check, step.seq, step.name), []).append(step)
    over = max(_ended_at(rank, end) for rank in ranks)
    for step in first:
        steps = same[step.check, step.seq, step.name]
        entered = min(same_step.entered_at for same_step in steps)
        left = None if step.left_at is None else max(same_step.left_at or end for same_step in steps)
        width = max(100 * ((over if left is None else left) - entered) / (end - start), _THINNEST)
        at = min(100 * (entered - start) / (end - start), 100 - _THINNEST)
        until = "not left" if left is None else f"left at {_seconds(left)}"
        words = f"{_step(step)}: entered at {_seconds(entered)}, {until}"
        yield {
            "start": round(at, 2),
            "width": round(min(width, 100 - at), 2),
            "is_open": left is None,
            "label": step.name if width > _FITS_A_LETTER * len(step.name) else "",
            "words": words,
        }


def _sentences(rank: RankEvidence, end: float) -> Iterator[str]:
    if not rank.began:
        yield "Its process never checked in"
    if rank.raised is not None:
        where = f" at {short(rank.raised.where)}" if rank.raised.where else ""
        yield f"Raised {rank.raised.type}{where} at {_seconds(rank.raised.at)}: {one_line(cause(rank.raised.message))}"
    if rank.exit_code is not None and not (rank.done and rank.exit_code == 0):
        when = f" at {_seconds(rank.exited_at)}" if rank.exited_at is not None else ""
        memory = ", out of memory" if rank.out_of_memory else ""
        name = signal_name(-rank.exit_code) if rank.exit_code < 0 else None
        yield f"Ended{when}: {name or f'exit code {rank.exit_code}'}{memory}"
    last = rank.steps[-1] if rank.steps else None
    if last is not None and last.left_at is None:
        until = _ended_at(rank, end)
        word = "In" if rank.raised is None and rank.exited_at is None else "Was in"
        lasted = _seconds(max(until - last.entered_at, 0.0))
        yield f"{word} {_step(last)} since {_seconds(last.entered_at)}, for {lasted}"
    elif rank.done:
        yield "Finished all steps"
    elif last is not None:
        yield f"Left {_step(last)} at {_seconds(last.left_at or 0.0)} and entered no other step"
    elif rank.began:
        yield "Entered no step"
    if not rank.done and (own := of_the_job(rank.stack)):
        yield f"Was at {short(own[-1])}"
    if rank.state and rank.raised is None and rank.exit_code is None and not rank.done:
        yield f"Its process: {STATES.get(rank.state, rank.state)}"


def _step(step: Step) -> str:
    detail = f" ({step.detail})" if step.detail else ""
    return f"{step.name} {step.seq} of {step.check}{detail}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s"
