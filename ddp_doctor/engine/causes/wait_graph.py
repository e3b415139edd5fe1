"""Who waits for whom, by the dumps of torch's flight recorder, and who is to blame for it; pure.

A rank waits in the first collective of a group that it has enqueued and not left, for the members of the group that
have enqueued fewer. In the order of certainty:

* different calls at one number of one group: the minority; of two ranks nobody,
* ranks that wait for each other in a circle, in different groups: the rank whose order of groups differs; nobody where
  as many of its group came as did not, for one that did not come may have left that call out,
* a rank that others wait for, and that itself waits in nothing: it stands in its own code. Where one rank waits alone
  and all others are at rest, that one made a collective more,
* a rank that others wait for and that left no dump: only a suspect,
* all members are in it: a link or a GPU, and no rank.

Nothing is said where no rank waits.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod

from ddp_doctor.engine.causes.dump_sets import sets_of
from ddp_doctor.engine.causes.dump_waits import Group, Wait, Waits
from ddp_doctor.engine.causes.judged import Judged
from ddp_doctor.engine.hang.judgement import minority
from ddp_doctor.facts.job_log import FlightDumpFact, JobLogFact, LogLine
from ddp_doctor.knowledge.job_causes import JOB_CAUSES
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Culprit
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import FlightEntry
from ddp_doctor.parse.frames import of_the_job
from ddp_doctor.views.job_waits import collective_name
from ddp_doctor.wording.ranks import capital, rank_list

_CAUSES = {cause.name: cause for cause in JOB_CAUSES}
#: Ranks of a group give these as many numbers; other collectives may take other shapes on each rank.
_ALIKE = ("all_reduce", "allreduce_coalesced", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base")
_MOST_LINES = 8
#: A dump written so soon after its newest collective may be of a job that goes on.
_GOES_ON_S = 2.0


def judged(recording: Recording) -> tuple[Judged, ...]:
    """Why ranks wait, one cause for each job among the dumps; () where none waits."""
    outputs = [at.fact for at in recording.facts(JobLogFact)]
    hosts = {rank.rank: rank.host for output in outputs for rank in output.ranks if rank.host}
    sizes = {output.world_size for output in outputs if output.world_size}
    jobs = sets_of([at.fact for at in recording.facts(FlightDumpFact)], min(sizes) if len(sizes) == 1 else None)
    return tuple(found for job in jobs if (found := _judged(Waits(job, hosts))) is not None)


def _judged(waits: Waits) -> Judged | None:
    silent = [
        rank
        for rank, dump in waits.job.dumps.items()
        if not any(group.entries or group.highest_seq for group in dump.groups)
    ]
    if len(waits.job.dumps) > 1 and len(silent) * 2 > len(waits.job.dumps):
        return _starting(waits, silent)
    if not waits.waits:
        return None
    for cause in (_mismatch, _circle, _outside, _unreachable):
        found = cause(waits)
        if found is not None:
            return found
    return _stalled(waits)


def _starting(waits: Waits, silent: Sequence[int]) -> Judged:
    said = f"{rank_list(silent)} had made no collective"
    lines = [(rank, f"rank {rank} has made no collective") for rank in silent]
    values = {"what": said}
    return _found(waits, "job-starting", Confidence.POSSIBLE, (), lines, "", who=silent, values=values)


# --- the causes, most certain first ------------------------------------------------------------------


def _signature(entries: Sequence[FlightEntry]) -> object:
    """What must agree between ranks: the operation, and how many numbers of which type where all give as many."""
    first = entries[0]
    if len(entries) > 1 or first.op not in _ALIKE:  # several of one number were coalesced; not all may be kept
        return {entry.op for entry in entries} == {first.op}, first.op
    return first.op, sum(map(prod, first.sizes)), first.dtypes


def _mismatch(waits: Waits) -> Judged | None:
    for group in waits.groups:
        if not any(entry.is_open for seen in group.seen.values() for entry in seen.entries):
            continue
        calls: dict[int, dict[int, list[FlightEntry]]] = defaultdict(lambda: defaultdict(list))
        for rank, seen in group.seen.items():
            for entry in seen.entries:
                calls[entry.seq][rank].append(entry)
        for seq in sorted(calls):
            alike: dict[object, list[int]] = defaultdict(list)
            for rank, entries in calls[seq].items():
                alike[_signature(entries)].append(rank)
            if len(alike) > 1:
                return _of_mismatch(waits, group, {rank: entries[0] for rank, entries in calls[seq].items()}, alike)
    return None


def _of_mismatch(
    waits: Waits, group: Group, calls: Mapping[int, FlightEntry], alike: dict[object, list[int]]
) -> Judged:
    odd = minority(alike.values())
    said = [f"{rank_list(ranks)} called {_shape_text(calls[ranks[0]])}" for ranks in sorted(alike.values(), key=len)]
    seq = calls[min(calls)].seq
    undecided = "" if odd else " No call has a majority, so no rank is named."
    detail = f"At number {seq} of {group.words}, {'; '.join(said)}.{undecided}{_where(waits, odd)}"
    others = [rank for ranks in alike.values() for rank in ranks if rank not in odd]
    lines = [(rank, f"rank {rank} called {_shape_text(calls[rank])}") for rank in (*odd, *others)]
    one, other = (odd or others)[0], others[-1]
    values = {
        "rank": str(one),
        "op": collective_name(calls[one].op),
        "shape": _shapes(calls[one]),
        "peer_rank": str(other),
        "peer_op": collective_name(calls[other].op),
        "peer_shape": _shapes(calls[other]),
    }
    who = odd or tuple(calls)
    return _found(waits, "collective-mismatch", Confidence.PROVED, odd, lines, detail, who=who, values=values)


def _shape_text(entry: FlightEntry) -> str:
    shapes = _shapes(entry)
    return collective_name(entry.op) + (f" of {shapes}" if shapes else "")


def _shapes(entry: FlightEntry) -> str:
    return " ".join([*(str(list(size)) for size in entry.sizes[:4]), *dict.fromkeys(entry.dtypes)])


def _circle(waits: Waits) -> Judged | None:
    """Ranks that wait for each other; or all are in all, but took up their groups in different orders."""
    first = waits.in_a_circle or waits.in_other_orders
    if not first:
        return None
    in_group: dict[object, list[int]] = defaultdict(list)
    for rank, wait in first.items():
        in_group[wait.group.name, wait.group.members].append(rank)
    odd = minority(in_group.values())
    half_came = any(0 < 2 * len(first[rank].missing) <= len(first[rank].group.members) for rank in odd)
    if half_came or 2 * max(map(len, in_group.values())) <= len(first):
        odd = ()
    orders = [f"{rank_list(ranks)} in {first[ranks[0]].call}" for ranks in in_group.values()]
    detail = f"They wait for each other: {'; '.join(orders)}.{_where(waits, odd)}"
    lines = [(rank, f"rank {rank} waits in {first[rank].call}") for rank in (*odd, *sorted(set(first) - set(odd)))]
    who = odd or tuple(first)
    values = {"odd": rank_list(odd)} if odd else {}
    return _found(waits, "cross-group-deadlock", Confidence.PROVED, odd, lines, detail, who=who, values=values)


def _outside(waits: Waits) -> Judged | None:
    """Ranks that others wait for and that wait in nothing; or the one rank that made a collective more."""
    idle = tuple(sorted(rank for rank in waits.awaited if rank in waits.job.dumps and rank not in waits.waiting))
    if not idle:
        return None
    direct = waits.waits_for(idle)
    callers = tuple(sorted({wait.rank for wait in direct}))
    call = min(direct, key=lambda wait: len(wait.missing))
    if len(callers) == 1 and len(idle) > 1:
        return _one_more(waits, call, idle)
    certain = len(idle) < len(callers)
    usual = len(idle) == 1 and call.entry is not None and _has_called(call, idle[0])
    named = idle if certain or usual else ()
    confidence = Confidence.PROVED if certain else Confidence.LIKELY if usual else Confidence.POSSIBLE
    detail = f"{_waits_text(direct)}. {capital(rank_list(idle))} never came"
    detail += f" and {'has' if len(idle) == 1 else 'have'} no collective open.{_where(waits, idle)}"
    if not named:
        detail += " Whether it is late, or the others called one collective more, the dumps do not tell."
    elif not certain:
        detail += f" Or {rank_list(callers)} called one collective more: with one rank on each side, look at both."
    lines = [(rank, _last_text(call.group, rank)) for rank in idle]
    lines += [(wait.rank, f"rank {wait.rank} waits in {wait.call}") for wait in direct]
    return _found(
        waits, "stuck-outside-collective", confidence, named, lines, detail, who=idle, values={"call": call.call}
    )


def _has_called(call: Wait, rank: int) -> bool:
    """Whether the operation is one that the absent rank has called before, in the same group."""
    seen = call.group.seen.get(rank)
    return seen is not None and call.entry is not None and call.entry.op in {entry.op for entry in seen.entries}


def _one_more(waits: Waits, call: Wait, idle: tuple[int, ...]) -> Judged:
    odd = (call.rank,)
    detail = f"Rank {call.rank} waits in {call.call}, which {rank_list(idle)} did not call: they are at rest before it."
    lines = [(call.rank, f"rank {call.rank} waits in {call.call}")]
    lines += [(rank, _last_text(call.group, rank)) for rank in idle]
    detail += _where(waits, odd)
    return _found(
        waits,
        "rank0-only-collective",
        Confidence.LIKELY,
        odd,
        lines,
        detail,
        who=odd,
        values={"call": call.call},
        next_check="look whether a condition on the rank stands around that call",
    )


def _last_text(group: Group, rank: int) -> str:
    seen = group.seen.get(rank)
    last = seen.entries[-1] if seen is not None and seen.entries else None
    if last is None:
        return f"rank {rank} has made no collective of {group.words}"
    return f"rank {rank} has ended {collective_name(last.op)} {last.seq} of {group.words} and waits in none"


def _unreachable(waits: Waits) -> Judged | None:
    absent = tuple(sorted(rank for rank in waits.awaited if rank not in waits.job.dumps))
    if not absent:
        return None
    direct = waits.waits_for(absent)
    callers = tuple(sorted({wait.rank for wait in direct}))
    named = absent if len(absent) < len(callers) and _is_one_suspect(waits, absent) else ()
    lines = []
    for rank in absent:
        unread = waits.job.unread.get(rank)
        if unread is not None:
            lines.append((rank, f"rank {rank}: {unread.problem}"))
    lines += [(wait.rank, f"rank {wait.rank} waits in {wait.call}") for wait in direct]
    detail = f"{_waits_text(direct)}, and nothing shows that {rank_list(absent)} came: {_no_dump(waits, absent)}."
    confidence = Confidence.LIKELY if named else Confidence.POSSIBLE
    return _found(
        waits, "rank-unreachable", confidence, named, lines, detail, who=absent, values={"call": direct[0].call}
    )


def _is_one_suspect(waits: Waits, absent: Sequence[int]) -> bool:
    """Whether one rank is absent, or all of one host and no others: of several, some may only have lost their dumps."""
    hosts = {waits.hosts.get(rank) for rank in absent}
    on_one = len(hosts) == 1 and hosts.isdisjoint({None, *map(waits.hosts.get, waits.job.dumps)})
    return waits.job.world_is_known and (len(absent) == 1 or on_one)


def _no_dump(waits: Waits, absent: Sequence[int]) -> str:
    parts = []
    old = {fact.rank: fact for fact in waits.job.earlier}
    for rank in absent[:_MOST_LINES]:
        if rank in waits.job.unread:
            parts.append(f"the dump of rank {rank} was not read ({waits.job.unread[rank].problem})")
        elif rank in old:
            parts.append(f"{old[rank].file} is of an earlier job")
    left = [rank for rank in absent if rank not in waits.job.unread and rank not in old]
    if left:
        parts.append(f"there is no dump of {rank_list(left)}")
    return "; ".join(parts)


def _stalled(waits: Waits) -> Judged | None:
    if all(_goes_on(waits.job.dumps[rank]) for rank in waits.waiting):
        return None
    call = waits.waits[0]
    sure = call.group.members_are_known and not waits.job.absent
    detail = _waits_text(waits.waits)
    detail += ", and all members have entered it." if sure else "; whether others should come, the dumps do not tell."
    lines = [(wait.rank, f"rank {wait.rank} waits in {wait.call}") for wait in waits.waits]
    return _found(
        waits,
        "collective-stalled",
        Confidence.POSSIBLE,
        (),
        lines,
        detail,
        who=waits.waiting,
        values={"call": call.call},
    )


def _goes_on(dump: FlightDumpFact) -> bool:
    if dump.written_at_s is None or dump.newest_at_s is None:
        return False
    return 0 <= dump.written_at_s - dump.newest_at_s < _GOES_ON_S


# --- words ------------------------------------------------------------------------------------------


def _where(waits: Waits, ranks: Sequence[int]) -> str:
    """Where in the job's code the last collective of these ranks was called."""
    said = []
    for rank in ranks[:3]:
        dump = waits.job.dumps.get(rank)
        frames = of_the_job(dump.frames) if dump is not None else []
        if frames:
            verb = "waits" if rank in waits.waiting else "made its last collective"
            said.append(f" Rank {rank} {verb} at {frames[-1]}.")
    return "".join(said)


def _waits_text(waits: Sequence[Wait]) -> str:
    """Ranks 0-4 wait in all_reduce 17 of the default group; rank 6 waits in broadcast 2 of group 1."""
    by_call: dict[str, list[int]] = defaultdict(list)
    for wait in waits:
        by_call[wait.call].append(wait.rank)
    said = [f"{rank_list(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {call}" for call, ranks in by_call.items()]
    return capital("; ".join(said))


def _found(
    waits: Waits,
    name: str,
    confidence: Confidence,
    culprits: Sequence[int],
    lines: Sequence[tuple[int, str]],
    detail: str,
    *,
    who: Sequence[int],
    values: Mapping[str, str] | None = None,
    next_check: str = "",
) -> Judged:
    files = {
        **{rank: fact.file for rank, fact in waits.job.unread.items()},
        **{rank: fact.file for rank, fact in waits.job.dumps.items()},
    }
    return Judged(
        _CAUSES[name],
        confidence,
        tuple(LogLine(file=files[rank], line=0, text=text) for rank, text in lines[:_MOST_LINES] if rank in files),
        tuple(Culprit(kind="rank", rank=rank) for rank in culprits),
        rank_list(who),
        detail,
        values=values or {},
        next_check=next_check,
    )
