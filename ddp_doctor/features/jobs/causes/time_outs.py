"""Causes in the timeouts of collectives: which ranks waited for what, and which were elsewhere.

A timeout is not a cause. If torch prints the number and kind of each rank's collective, a rank that was in another one,
or had called fewer, is distinguished from the ranks that waited for it. nccl2 of torch 2.15 prints neither, so ranks
cannot be compared.

    rank 0-4, 6, 7   default_pg   all-reduce 17 of 1024 elements
    rank 5           default_pg   had enqueued 16
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ddp_doctor.engine.waits.judge import Ruling, judge
from ddp_doctor.features.jobs.causes.evidence import Output, Suspect, lines, ranks_of
from ddp_doctor.features.jobs.causes.judged import Judged
from ddp_doctor.features.jobs.causes.standings import UNEVEN, standings_in, standings_of
from ddp_doctor.features.jobs.causes.whose import places, rank_culprit
from ddp_doctor.features.jobs.facts import SignSeen
from ddp_doctor.features.jobs.table import SIGNS, cause_named
from ddp_doctor.features.jobs.views.job_waits import Wait, collective_name, elements_of, waits
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence
from ddp_doctor.wording.ranks import capital, rank_list

#: The first collectives, in which NCCL connects ranks and moves data for the first time; DDP's constructor calls three.
_FIRST = 3
#: Values of signs that name missing ranks.
_NOT_COME = ("missing", "lagging", "not_joined")
#: Timeouts of process groups, if none is printed (torch 2.15 distributed/constants.py).
_USUAL_S = (600.0, 1800.0)
#: Maximum number of ranks to read from one line of torch.
_MOST_RANKS = 100_000
#: A call of torch.distributed in the frames of a traceback.
_CALL = re.compile(r"distributed_c10d\.py:\d+ in (\w+)|autograd/graph\.py:\d+ in _engine_run_(backward)")
#: A progress bar or a progress count.
_PROGRESS = re.compile(r"\d{1,3}%\||\bit/s\b|s/it\b|\d/\d+ \[|examples/s", re.IGNORECASE)


def suspects(output: Output) -> Iterator[Suspect]:
    """Yield the causes that the waits of each group show, otherwise the one that other signs of timeouts show."""
    found = False
    for of_group in waits(output.fact).values():
        judged = _of_group(output, of_group)
        if judged is not None:
            found = True
            signs = tuple(sign for wait in of_group.values() for sign in wait.signs)
            yield Suspect(judged.cause, "watchdog", judged.confidence, signs, judged)
    signs = tuple(sign for sign in output.fact.signs if SIGNS[sign.sign][0].tier == "watchdog")
    steps = (_foreign_ranks, _other_operation, _in_another_call, _long_work, _named_by_torch, _stuck, _never_made)
    for step in steps if signs and not found else ():
        judged = step(output, signs)
        if judged is not None:
            yield Suspect(judged.cause, "watchdog", judged.confidence, signs, judged)
            return


def waited(output: Output) -> str:
    """Return a sentence such as ``ranks 0-3 waited in all-reduce 17 of 1024 elements.``, or ""."""
    parts = []
    for group, time_outs in waits(output.fact).items():
        by_call = grouped((wait.collective, rank) for rank, wait in time_outs.items() if wait.seq is not None)
        in_group = f" in group {group}" if group else ""
        parts += [f"{places(output, ranks)} waited in {call}{in_group}" for call, ranks in by_call.items()]
    return f"{'; '.join(parts)}." if parts else ""


def worked_before(output: Output) -> str:
    """Return a sentence on how many collectives worked before, because setup faults affect the first ones."""
    at = [wait.seq for of_group in waits(output.fact).values() for wait in of_group.values() if wait.seq is not None]
    if (apart := max(at, default=0) - min(at, default=0)) > 0 and len(waits(output.fact)) == 1:
        return f"Their numbers differ by {apart}: the ranks called different collectives, or are in different groups."
    number = collective_reached(output)
    if is_first(number):
        return "It was one of the first collectives, so the set-up of network or GPUs is a likely cause."
    later = "collectives had worked before, so code, a link or a GPU is a likely cause, not the set-up."
    return f"{number - 1} {later}" if number else ""


def is_first(number: int) -> bool:
    """Return True if NCCL connects the ranks in the collective with this number."""
    return 0 < number <= _FIRST


def collective_reached(output: Output) -> int:
    """Return the highest number of a collective in which a rank timed out, or 0 if none is printed."""
    return max(map(_last, waits(output.fact).values()), default=0)


def _judged(
    output: Output, name: str, confidence: Confidence, signs: Sequence[SignSeen], guilty: Collection[int], detail: str
) -> Judged:
    return Judged(
        cause_named(name),
        confidence,
        lines(signs),
        tuple(rank_culprit(output, rank) for rank in sorted(guilty)),
        places(output, guilty) if guilty else "a rank",
        detail,
        values={"call": _call(signs) or ("a collective" if name == "stuck-outside-collective" else "")},
    )


def _call(signs: Sequence[SignSeen]) -> str:
    if any("not_joined" in sign.values for sign in signs):
        return "the process group"
    numbered = (sign.values for sign in signs if sign.values.get("seq"))
    return next((f"{collective_name(values.get('op', ''))} {values['seq']}" for values in numbered), "")


def _of_group(output: Output, ranks: Mapping[int, Wait]) -> Judged | None:
    last = _last(ranks)
    behind = [rank for rank, wait in ranks.items() if wait.reached < last]
    works = [rank for rank in behind if len(behind) == 1 and ranks[rank].seq is None and _worked(output, rank)]
    ruling = judge(standings_of(ranks, output.world, works))
    if ruling is None:
        return None
    callers = len(ruling.waits)  # ranks that printed nothing may also be behind
    are_few = 2 * callers < len(output.world | ranks.keys())
    if ruling.kind == "different-calls":
        return _other_collective(output, ranks, ruling)
    may_name = ruling.kind == "at-work" or (ruling.kind == "outside" and len(ruling.who) < callers)
    if may_name and not are_few:
        return _behind(output, ranks, ruling)
    found = _only_some_called(output, ranks, ruling) if ruling.kind in ("one-more", "unreachable") else None
    found = found or _some_are_ahead(output, ranks)
    return found or (_either(output, ranks, ruling) if ruling.kind == "outside" else None)


def _last(ranks: Mapping[int, Wait]) -> int:
    return max((wait.seq or 0 for wait in ranks.values()), default=0)


def _first_signs(ranks: Mapping[int, Wait], of: Iterable[int]) -> list[SignSeen]:
    return [sign for rank in of for sign in ranks[rank].signs[:1]]


def _other_collective(output: Output, ranks: Mapping[int, Wait], ruling: Ruling) -> Judged | None:
    """Name the minority if operations or sizes differ at one number, or no rank if the sides are equal."""
    what = "; ".join(f"{rank_list(side)} called {ranks[side[0]].collective}" for side in ruling.sides)
    alone = len(ruling.suspects) == 1 and _is_barrier(ranks[ruling.suspects[0]])
    name = "rank0-only-collective" if alone else "collective-mismatch"
    everyone = sorted(rank for side in ruling.sides for rank in side)
    detail = f"As collective {ranks[everyone[0]].seq}, {what}."
    return _judged(output, name, Confidence.LIKELY, _first_signs(ranks, everyone), ruling.suspects, detail)


def _is_barrier(wait: Wait) -> bool:
    """Return True if it may be a barrier, which is an all-reduce of one element in NCCL."""
    return wait.numel == "1" or "BARRIER" in wait.op


def _only_some_called(output: Output, ranks: Mapping[int, Wait], ruling: Ruling) -> Judged | None:
    """Name the ranks that called one collective more than most others, usually rank 0 in a barrier."""
    callers = [wait.rank for wait in ruling.waits]
    others = sorted((output.world | ranks.keys()) - {*callers})
    absent = ruling.sides[1] if ruling.kind == "one-more" else ()
    is_known = any((ranks[rank].enqueued or 0) > 0 for rank in absent)  # a rank without any call may only be late
    if not is_known and (len(others) < 2 or callers != [0] or not _is_barrier(ranks[0])):  # the others printed nothing
        return None
    sure = Confidence.LIKELY if is_known else Confidence.POSSIBLE
    detail = f"Only {rank_list(callers)} called {ranks[callers[0]].collective}; {rank_list(others)} did not."
    return _judged(output, "rank0-only-collective", sure, _first_signs(ranks, callers), callers, detail)


def _behind(output: Output, ranks: Mapping[int, Wait], ruling: Ruling) -> Judged | None:
    """Name the few ranks that had called fewer collectives while most wait: they never entered this one."""
    callers, behind = [wait.rank for wait in ruling.waits], ruling.who
    worked = ruling.kind == "at-work"
    name = "timeout-long-rank0-work" if worked else "stuck-outside-collective"
    far = ", ".join(sorted({str(ranks[rank].enqueued) for rank in behind}))
    detail = (
        f"{capital(rank_list(callers))} waited in {ranks[callers[0]].collective};"
        f" {rank_list(behind)} had called {far}, but not {_last(ranks)}."
    )
    return _judged(output, name, Confidence.LIKELY, _first_signs(ranks, (*behind, *callers)), behind, detail)


def _either(output: Output, ranks: Mapping[int, Wait], ruling: Ruling) -> Judged | None:
    """Report both sides if as many ranks wait as had called fewer: the numbers do not show which is wrong."""
    here, there = [wait.rank for wait in ruling.waits], ruling.who
    if any(ranks[rank].seq is not None for rank in there):
        return None
    far = " and ".join(
        sorted({str(enqueued) if (enqueued := ranks[rank].enqueued or 0) > 0 else "none" for rank in there})
    )
    called = f"{capital(rank_list(there))} had called {far}"
    either = f"{rank_list(there)} did not enter, or {rank_list(here)} called one more"
    verb = "waits" if len(here) == 1 else "wait"
    detail = f"{called}, {rank_list(here)} {verb} in {ranks[here[0]].collective}: {either}."
    detail += " Check both, because the numbers do not show which is at fault."
    signs = _first_signs(ranks, (*there, *here))
    judged = _judged(output, "stuck-outside-collective", Confidence.LIKELY, signs, (), detail)
    title = f"{called}, {rank_list(here)} {verb} in {_last(ranks)}: {either}"
    next_check = f"py-spy dump --pid PID of {rank_list(sorted((*here, *there)))} while they hang, or the dumps of both"
    return replace(judged, cause=judged.cause._replace(title=title), next_check=next_check)


def _some_are_ahead(output: Output, ranks: Mapping[int, Wait]) -> Judged | None:
    """Report ranks in a collective that others have finished: calls differ, or data did not reach them."""
    by_seq = grouped((wait.seq, wait) for wait in ranks.values() if wait.seq is not None)
    if len(by_seq) != 2:
        return None
    behind, ahead = (by_seq[seq] for seq in sorted(by_seq))
    if behind[0].op == ahead[0].op or UNEVEN.search(f"{behind[0].op} {ahead[0].op}"):
        return None
    detail = (
        f"{capital(rank_list(sorted(w.rank for w in behind)))} waited in"
        f" {behind[0].collective}, which {rank_list(sorted(w.rank for w in ahead))} had"
        f" finished; they then waited in {ahead[0].collective}. Ranks called different"
        " collectives, or data did not arrive."
    )
    signs = [sign for wait in (*behind, *ahead) for sign in wait.signs[:1]]
    return _judged(output, "collective-mismatch", Confidence.POSSIBLE, signs, (), detail)


def _other_operation(output: Output, signs: Sequence[SignSeen]) -> Judged | None:
    """Name the few in another operation of ranks that timed out together; torch before 1.13 has no numbers."""
    first: dict[int, SignSeen] = {}
    calls: dict[int, str] = {}
    for sign in signs:
        if sign.sign == "watchdog-timeout" and "op" in sign.values and "seq" not in sign.values:
            elements = elements_of(sign.values.get("shape", ""))
            call = collective_name(sign.values["op"]) + (f" of {elements} elements" if elements else "")
            for rank in ranks_of([sign]):
                first.setdefault(rank, sign)
                calls.setdefault(rank, call)
    by_call = grouped((call, rank) for rank, call in sorted(calls.items()))
    if len(by_call) < 2 or UNEVEN.search(" ".join(sign.values["op"] for sign in first.values())):
        return None
    ruling = judge(standings_in(calls))
    guilty = ruling.suspects if ruling is not None and len(by_call) == 2 else ()
    # If several ranks are in each call, their groups may differ, which this torch does not print either.
    sure = Confidence.LIKELY if len(guilty) == 1 else Confidence.POSSIBLE
    return _judged(output, "collective-mismatch", sure, list(first.values()), guilty, _who_waited(by_call))


def _who_waited(by_call: Mapping[str, Sequence[int]]) -> str:
    parts = (f"{rank_list(ranks)} waited in {call}" for call, ranks in by_call.items())
    return f"{capital('; '.join(parts))}."


def _foreign_ranks(output: Output, signs: Sequence[SignSeen]) -> Judged | None:
    """Report more ranks at the store than the job has: they are of another job, or of an earlier attempt."""
    counts = [sign for sign in signs if sign.sign == "store-barrier" and "came" in sign.values]
    if not any(int(sign.values["came"]) > int(sign.values["world"]) for sign in counts):
        return None
    came, world = (int(counts[0].values[name]) for name in ("came", "world"))
    detail = f"{came} ranks joined the store of a job of {world}."
    judged = _judged(output, "rendezvous-port-conflict", Confidence.LIKELY, counts, (), detail)
    if not world or came % world:
        return judged
    title = f"{came} ranks joined the store of {world}: {came // world} starts of this job, or another job, share it"
    return replace(judged, cause=judged.cause._replace(title=title))


def _long_work(output: Output, signs: Sequence[SignSeen]) -> Judged | None:
    """Report the rank that all others wait for, if its last output is the progress of its own work."""
    waiting = ranks_of(signs)
    missing = sorted((output.world | set(range(max(waiting, default=0)))) - waiting)
    if not waiting:
        return None
    call = f" in {_call(signs)}" if _call(signs) else ""
    detail = f"{capital(places(output, waiting))} waited{call}."
    if len(missing) == 1 and _worked(output, missing[0]) and (last := output.ranks[missing[0]].last):
        detail += f" Last output of rank {missing[0]}: {last.text}"
        return _judged(output, "timeout-long-rank0-work", Confidence.LIKELY, signs, missing, detail)
    bar = next((sign.values for sign in signs if "bar_s" in sign.values), None)
    limits_s = {float(sign.values["timeout_ms"]) / 1000 for sign in signs if sign.values.get("timeout_ms")} or _USUAL_S
    if bar is None or not any(0.9 * limit_s <= float(bar["bar_s"]) <= 1.25 * limit_s for limit_s in limits_s):
        return None  # the bar did not begin with the wait, or was gone at its end
    detail += f" Its progress bar was at {bar['bar']} by then, and started when they began to wait."
    guilty = _never_came(signs) or (missing if len(missing) == 1 else [])
    at_first = all(int(sign.values.get("seq") or 0) <= _FIRST for sign in signs)
    sure = Confidence.LIKELY if at_first else Confidence.POSSIBLE
    return _judged(output, "timeout-long-rank0-work", sure, signs, guilty, detail)


def _in_another_call(output: Output, _: Sequence[SignSeen]) -> Judged | None:
    """Report ranks whose tracebacks show different calls, such as a single barrier; gloo prints no numbers."""
    first: dict[int, SignSeen] = {}
    calls: dict[int, str] = {}
    for sign in output.fact.signs:
        frames = sign.values.get("frames", "") if sign.sign == "exception" else ""
        found = [call or backward for call, backward in _CALL.findall(frames)]
        if found and "Timed out waiting" in sign.values.get("message", ""):
            for rank in ranks_of([sign]):
                first.setdefault(rank, sign)
                calls.setdefault(rank, found[-1])
    barriers = [rank for rank, call in calls.items() if "barrier" in call]
    if len(set(calls.values())) < 2 or ("backward" in calls.values() and not barriers):
        return None
    ruling = judge(standings_in(calls))
    guilty = list(ruling.suspects) if ruling is not None else []
    alone = len(barriers) == 1 and guilty in ([], barriers)
    name = "rank0-only-collective" if alone else "collective-mismatch"
    by_call = grouped((call, rank) for rank, call in sorted(calls.items()))
    most_first = sorted(by_call.items(), key=lambda of: len(of[1]), reverse=True)
    who_waited = _who_waited({collective_name(call): ranks for call, ranks in most_first})
    who = barriers if alone else guilty
    return _judged(output, name, Confidence.LIKELY, list(first.values()), who, who_waited)


def _named_by_torch(output: Output, signs: Sequence[SignSeen]) -> Judged | None:
    """Name ranks that monitored_barrier or the store lists as missing, or the desync report as lagging."""
    for sign in signs:
        if sign.sign == "store-id-timeout":
            continue
        numbers = next((sign.values[name] for name in _NOT_COME if sign.values.get(name)), "")
        absent = sorted({int(number) for number in re.findall(r"\d{1,7}", numbers)[:_MOST_RANKS]})
        if absent and ranks_of(signs).isdisjoint(absent):
            detail = f"The output lists {rank_list(absent)} as missing."
            return _judged(output, "stuck-outside-collective", Confidence.LIKELY, [sign], absent, detail)
    return None


def _never_made(output: Output, signs: Sequence[SignSeen]) -> Judged | None:
    """Name the rank that did not start NCCL's communicator; it may have been busy, dead or unreachable."""
    absent = _never_came(signs)
    if not absent:
        return None
    detail = f"{capital(rank_list(absent))} did not start NCCL's communicator, for which other ranks waited."
    return _judged(output, "stuck-outside-collective", Confidence.POSSIBLE, signs, absent, detail)


def _never_came(signs: Sequence[SignSeen]) -> list[int]:
    absent = {int(sign.values["missing"]) for sign in signs if sign.sign == "store-id-timeout"}
    return sorted(absent) if len(absent) == 1 and ranks_of(signs).isdisjoint(absent) else []


def _stuck(output: Output, signs: Sequence[SignSeen]) -> Judged | None:
    """Name the one rank that neither timed out nor exited on SIGTERM: waiting ranks do both."""
    waiting = ranks_of(signs)
    if len(output.stuck) != 1 or not waiting or not waiting.isdisjoint(output.stuck):
        return None
    detail = (
        f"{capital(places(output, waiting))} timed out; {places(output, output.stuck)} did"
        " not, and SIGTERM did not end it: it was stopped, or is in an uninterruptible call."
    )
    return _judged(output, "stuck-outside-collective", Confidence.LIKELY, signs, output.stuck, detail)


def _worked(output: Output, rank: int) -> bool:
    last = output.rank(rank).last
    return last is not None and bool(_PROGRESS.search(last.text))
