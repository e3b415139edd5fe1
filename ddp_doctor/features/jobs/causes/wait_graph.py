"""The reason why ranks wait: the ruling of engine/waits/judge.py on dumps of torch's flight recorder, as text.

If no rank waits, there is no cause, unless most ranks called no collective. Without side effects.
"""

from collections.abc import Iterable, Mapping, Sequence

from ddp_doctor.engine.waits.from_dumps import DumpSet, sets_of, standings_of
from ddp_doctor.engine.waits.judge import Ruling, judge
from ddp_doctor.engine.waits.standings import Call, Wait
from ddp_doctor.facts.given import FlightDumpFact
from ddp_doctor.features.jobs.causes.judged import Judged
from ddp_doctor.features.jobs.facts import JobLogFact, LogLine
from ddp_doctor.features.jobs.table import cause_named
from ddp_doctor.features.jobs.views.job_waits import collective_name
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Culprit
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.frames import of_the_job
from ddp_doctor.wording.ranks import capital, rank_list, where_they_wait

_MOST_LINES = 8
#: A dump written sooner than this after its newest collective may be of a job that makes progress.
_GOES_ON_S = 2.0


def judged(recording: Recording) -> tuple[Judged, ...]:
    """Return why ranks wait, as one cause for each job among the dumps; empty if none waits."""
    outputs = [at.fact for at in recording.facts(JobLogFact)]
    hosts = {rank.rank: rank.host for output in outputs for rank in output.ranks if rank.host}
    sizes = {output.world_size for output in outputs if output.world_size}
    jobs = sets_of([at.fact for at in recording.facts(FlightDumpFact)], min(sizes) if len(sizes) == 1 else None)
    return tuple(found for job in jobs if (found := _Words(job, hosts).judged()) is not None)


class _Words:
    def __init__(self, job: DumpSet, hosts: Mapping[int, str]) -> None:
        self.job = job
        self.standings = {standing.rank: standing for standing in standings_of(job, hosts)}

    def judged(self) -> Judged | None:
        silent = [
            rank
            for rank, dump in self.job.dumps.items()
            if not any(group.entries or group.highest_seq for group in dump.groups)
        ]
        if len(self.job.dumps) > 1 and len(silent) * 2 > len(self.job.dumps):
            lines = [(rank, f"rank {rank} called no collective") for rank in silent]
            values = {"what": f"{rank_list(silent)} called no collective"}
            starting = Ruling("not-known", Confidence.POSSIBLE, who=tuple(silent))
            return self._found("job-starting", starting, lines, "", values)
        ruling = judge(list(self.standings.values()), all_are_known=self.job.world_is_known)
        if ruling is None:
            return None
        return {
            "different-calls": self._mismatch,
            "stuck-gpu": self._stuck_gpu,
            "circle": self._circle,
            "outside": self._outside,
            "one-more": self._one_more,
            "unreachable": self._unreachable,
            "all-in-one": self._stalled,
        }[ruling.kind](ruling)

    def _mismatch(self, ruling: Ruling) -> Judged:
        calls = ruling.calls
        parts = [f"{rank_list(ranks)} called {_shape_text(calls[ranks[0]])}" for ranks in sorted(ruling.sides, key=len)]
        first = next(iter(calls.values()))
        undecided = "" if ruling.suspects else " No call has a majority, so the faulty rank is unknown."
        detail = f"At number {first.seq} of {first.group.words}, {'; '.join(parts)}.{undecided}"
        others = [rank for ranks in ruling.sides for rank in ranks if rank not in ruling.suspects]
        lines = [(rank, f"rank {rank} called {_shape_text(calls[rank])}") for rank in (*ruling.suspects, *others)]
        rank, other = (ruling.suspects or others)[0], others[-1]
        values = {
            "rank": str(rank),
            "op": collective_name(calls[rank].op),
            "shape": _shapes(calls[rank]),
            "peer_rank": str(other),
            "peer_op": collective_name(calls[other].op),
            "peer_shape": _shapes(calls[other]),
        }
        return self._found("collective-mismatch", ruling, lines, f"{detail}{self._where(ruling.suspects)}", values)

    def _stuck_gpu(self, ruling: Ruling) -> Judged | None:
        if any(_goes_on(self.job.dumps[rank]) for rank in ruling.who):
            return None
        first = ruling.waits[0]
        detail = f"Other members of {first.call.group.words} have completed {_call_text(first)}, and the rank has"
        detail += f" called it.{self._where(ruling.who)}"
        return self._found("gpu-stuck", ruling, _waits_lines(ruling.waits), detail, {"call": _call_text(first)})

    def _circle(self, ruling: Ruling) -> Judged:
        waits = {wait.rank: wait for wait in ruling.waits}
        orders = [f"{rank_list(ranks)} in {_call_text(waits[ranks[0]])}" for ranks in ruling.sides]
        detail = f"They wait for each other: {'; '.join(orders)}.{self._where(ruling.suspects)}"
        others = sorted(waits.keys() - {*ruling.suspects})
        lines = _waits_lines(waits[rank] for rank in (*ruling.suspects, *others))
        values = {"odd": rank_list(ruling.suspects)} if ruling.suspects else {}
        return self._found("cross-group-deadlock", ruling, lines, detail, values)

    def _outside(self, ruling: Ruling) -> Judged:
        who, waits = ruling.who, ruling.waits
        call = min(waits, key=lambda wait: len(wait.missing))
        detail = f"{_waits_text(waits)}. {capital(rank_list(who))} never entered"
        detail += f" and {'has' if len(who) == 1 else 'have'} no collective open.{self._where(who)}"
        callers = sorted({wait.rank for wait in waits})
        if not ruling.suspects:
            detail += " The dumps do not show whether it is late or the other ranks called one more collective."
        elif ruling.sure is not Confidence.PROVED:
            detail += f" Or {rank_list(callers)} called one more collective. With one rank on each side, check both."
        lines = [(rank, self._last_text(call.call, rank)) for rank in who] + _waits_lines(waits)
        return self._found("stuck-outside-collective", ruling, lines, detail, {"call": _call_text(call)})

    def _one_more(self, ruling: Ruling) -> Judged:
        (rank,), idle = ruling.sides
        wait = min(ruling.waits, key=lambda wait: len(wait.missing))
        call = _call_text(wait)
        detail = f"Rank {rank} waits in {call}, which {rank_list(idle)} did not call."
        lines = [*_waits_lines([wait]), *((other, self._last_text(wait.call, other)) for other in idle)]
        next_check = "check whether a condition on the rank surrounds that call"
        detail += self._where([rank])
        return self._found("rank0-only-collective", ruling, lines, detail, {"call": call}, next_check)

    def _unreachable(self, ruling: Ruling) -> Judged:
        unread = self.job.unread
        lines = [(rank, f"rank {rank}: {unread[rank].problem}") for rank in ruling.who if rank in unread]
        lines += _waits_lines(ruling.waits)
        detail = f"{_waits_text(ruling.waits)}, and {rank_list(ruling.who)} may not have entered:"
        detail += f" {self._no_dump(ruling.who)}."
        return self._found("rank-unreachable", ruling, lines, detail, {"call": _call_text(ruling.waits[0])})

    def _no_dump(self, absent: Sequence[int]) -> str:
        parts = []
        old = {fact.rank: fact for fact in self.job.earlier}
        for rank in absent[:_MOST_LINES]:
            if rank in self.job.unread:
                parts.append(f"the dump of rank {rank} was not read ({self.job.unread[rank].problem})")
            elif rank in old:
                parts.append(f"{old[rank].file} is of an earlier job")
        left = [rank for rank in absent if rank not in self.job.unread and rank not in old]
        if left:
            parts.append(f"there is no dump of {rank_list(left)}")
        return "; ".join(parts)

    def _stalled(self, ruling: Ruling) -> Judged | None:
        if all(_goes_on(self.job.dumps[rank]) for rank in ruling.who):
            return None
        first = next((wait for wait in ruling.waits if wait.call.seq is not None), ruling.waits[0])
        sure = first.call.group.members_are_known and not self.job.absent
        detail = _waits_text(ruling.waits)
        detail += (
            ", and all members have entered it." if sure else "; the dumps do not show whether more ranks belong to it."
        )
        lines = _waits_lines(ruling.waits)
        return self._found("collective-stalled", ruling, lines, detail, {"call": _call_text(first)})

    def _where(self, ranks: Sequence[int]) -> str:
        parts = []
        for rank in ranks[:3]:
            dump = self.job.dumps.get(rank)
            frames = of_the_job(dump.frames) if dump is not None else []
            if frames:
                verb = "waits" if self.standings[rank].waits else "called its last collective"
                parts.append(f" Rank {rank} {verb} at {frames[-1]}.")
        return "".join(parts)

    def _last_text(self, call: Call, rank: int) -> str:
        last = next((of for of in reversed(self.standings[rank].calls) if of.group is call.group), None)
        if last is None:
            return f"rank {rank} called no collective of {call.group.words}"
        return f"rank {rank} finished {collective_name(last.op)} {last.seq} of {call.group.words} and waits in none"

    def _found(
        self,
        name: str,
        ruling: Ruling,
        lines: Sequence[tuple[int, str]],
        detail: str,
        values: Mapping[str, str],
        next_check: str = "",
    ) -> Judged:
        files = {rank: fact.file for rank, fact in (self.job.unread | self.job.dumps).items()}
        return Judged(
            cause_named(name),
            ruling.sure,
            tuple(LogLine(file=files[rank], line=0, text=text) for rank, text in lines[:_MOST_LINES] if rank in files),
            tuple(Culprit(kind="rank", rank=rank) for rank in ruling.suspects),
            rank_list(ruling.who),
            detail,
            values=values,
            next_check=next_check,
        )


def _goes_on(dump: FlightDumpFact) -> bool:
    if dump.written_at_s is None or dump.newest_at_s is None:
        return False
    return 0 <= dump.written_at_s - dump.newest_at_s < _GOES_ON_S


def _call_text(wait: Wait) -> str:
    if wait.call.seq is None:
        return f"a transfer with rank {min(wait.missing)}" if wait.missing else "a transfer"
    return f"{collective_name(wait.call.op)} {wait.call.seq} of {wait.call.group.words}"


def _shape_text(call: Call) -> str:
    shapes = _shapes(call)
    return collective_name(call.op) + (f" of {shapes}" if shapes else "")


def _shapes(call: Call) -> str:
    return " ".join([*(str(list(size)) for size in call.sizes[:4]), *dict.fromkeys(call.dtypes)])


def _waits_lines(waits: Iterable[Wait]) -> list[tuple[int, str]]:
    return [(wait.rank, f"rank {wait.rank} waits in {_call_text(wait)}") for wait in waits]


def _waits_text(waits: Sequence[Wait]) -> str:
    return where_they_wait((f"in {_call_text(wait)}", wait.rank) for wait in waits)
