"""The reason why a running job makes no progress: the ruling of engine/waits/judge.py on samples of its ranks, as text.

views/live.py works out what each rank does. If ranks provide their flight recorders, these show better than stacks
which ranks wait for each other (wait_graph.py). If NCCL's RAS answers, its answer replaces "not known". A healthy rank
is never named: if the samples are not sufficient, the answer is "not known". Without side effects.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ddp_doctor.engine.waits.judge import Ruling, judge
from ddp_doctor.features.jobs.causes import live_meetings, wait_graph
from ddp_doctor.features.jobs.causes.evidence import Output, lines, suspects
from ddp_doctor.features.jobs.causes.judged import Judged
from ddp_doctor.features.jobs.causes.standings import WELL, standings_of_looks
from ddp_doctor.features.jobs.facts import JobLogFact, LogLine, Unacknowledged
from ddp_doctor.features.jobs.table import cause_named
from ddp_doctor.features.jobs.table.remedies import in_code
from ddp_doctor.features.jobs.text import busy_text, called, collective_of, names, place, plural, says, verb, waits_text
from ddp_doctor.features.jobs.views.job_waits import collective_name
from ddp_doctor.features.jobs.views.live import UNABLE, Doing, LiveJob, last_to_come, live_jobs
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Culprit, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.wording.ranks import capital, rank_list, short

#: Maximum number of ranks that are named with their processes.
_EACH = 2
#: The number of calls that each rank has launched, by operation, as NCCL's RAS counts them.
_Counts = Mapping[str, Mapping[int, int]]
_MOST_LINES = 8
_MOST_FRAMES = 12
#: Minimum number of retransmissions in a row without an answer.
_SENT_AGAIN = 2
#: Causes if all ranks wait, or all but a few.
_ALL_WAIT = ("collective-stalled", "cross-group-deadlock", "collective-mismatch", "rank0-only-collective")
#: Causes from stacks. Flight recorders are better evidence, because they have groups and numbers of collectives.
_BY_STACKS_ALONE = ("progress-not-known", *_ALL_WAIT)
#: Causes that ranks without samples may explain.
_OF_ALL_RANKS = ("stuck-outside-collective", *_ALL_WAIT)
#: Causes that recorders show for ranks whose recorder did not answer, or for no rank: attach has sampled those ranks.
_NOT_OF_RECORDERS = ("rank-unreachable", "collective-stalled")


def judged(recording: Recording) -> Iterator[Judged]:
    """Yield what holds up the jobs in a recording of attach, one job after the other."""
    jobs = [_Job(job) for job in live_jobs(recording)]
    for job in jobs:
        found = job.judged()
        if len(jobs) == len(found) == 1 and found[0].cause.name in _BY_STACKS_ALONE:
            found = job.by_itself(recording, found[0]) or found
        for cause in found:
            yield replace(cause, job=job.job.name, is_one_of_several_jobs=len(jobs) > 1)


class _Job:
    def __init__(self, job: LiveJob) -> None:
        self.job, self.ranks = job, job.ranks
        self.able = [rank for rank in job.ranks if rank.kind not in UNABLE]
        self.in_collective = [rank for rank in self.able if rank.waits]
        self.for_gpu = [rank for rank in self.able if rank.kind == "gpu" and not rank.moves]
        self.waiting = [*self.in_collective, *self.for_gpu]
        self.outside = [rank for rank in self.able if rank.kind not in ("collective", "gpu")]

    def judged(self) -> tuple[Judged, ...]:
        if self.job.has_ended:
            return self._ended()
        if (meeting := self.job.meeting) and (missed := live_meetings.judged(self.job, meeting)):
            return (missed,)
        ruling = judge(standings_of_looks(self.job)) or Ruling("not-known", Confidence.POSSIBLE)
        if ruling.kind == "unable":
            return (*self._cannot_run(), *self._gone(ruling.who))
        if ruling.kind == "gets-on":
            return self._late()
        if ruling.kind == "at-work":
            return (self._at_work(self._those(ruling.who)),)
        found = self._stands_still(ruling)
        may_be_others = self.job.is_elsewhere and found.cause.name in _OF_ALL_RANKS
        return (self._not_known() if may_be_others and found.confidence is not Confidence.PROVED else found,)

    def _those(self, ranks: Collection[int]) -> list[Doing]:
        return [rank for rank in self.ranks if rank.rank in ranks]

    def _stands_still(self, ruling: Ruling) -> Judged:
        loading = [rank for rank in self.outside if rank.has_loaders and rank.moves is False]
        if loading:
            return self._no_data(loading)
        if ruling.kind == "not-known" or any(rank.kind == "unknown" for rank in self.outside):
            return self._not_known()
        if ruling.kind == "one-more":
            return self._found("rank0-only-collective", ruling.sure, self.waiting, (), call=self._call)
        if ruling.kind == "outside":
            return self._outside(ruling)
        return self._not_known() if self.outside else self._all_wait(ruling)

    @property
    def _call(self) -> str:
        return " or ".join(dict.fromkeys(map(collective_of, self.in_collective))) or "a collective on the GPU"

    # --- by the job's own records ---------------------------------------------------------------------

    def by_itself(self, recording: Recording, instead_of: Judged) -> tuple[Judged, ...]:
        """Return the causes in the job's own records, if the ranks are numbered."""
        if not self.job.is_numbered:
            return ()
        return self._by_recorders(recording) or self._by_ras(recording, instead_of)

    def _by_recorders(self, recording: Recording) -> tuple[Judged, ...]:
        found = []
        for cause in wait_graph.judged(recording):
            if cause.cause.name not in _NOT_OF_RECORDERS:
                blamed = [culprit.rank for culprit in cause.culprits if culprit.rank is not None]
                ranks = sorted(self.ranks, key=lambda rank: rank.rank not in blamed)
                found.append(replace(cause, lines=(*self._lines(ranks), *cause.lines), culprits=self._culprits(blamed)))
        return tuple(found)

    def _by_ras(self, recording: Recording, instead_of: Judged) -> tuple[Judged, ...]:
        if instead_of.cause.name not in ("progress-not-known", "collective-stalled"):
            return ()
        if counts := self._counts():
            return (self._by_counts(counts),)
        found_by_ras = (
            (suspect, sorted({int(sign.values["rank"]) for sign in suspect.signs if sign.values.get("rank")}))
            for at in recording.facts(JobLogFact)
            for suspect in suspects(Output(at.fact))
            if suspect.tier == "ras" and suspect.cause.name != "rank-behind"
        )
        return tuple(
            Judged(
                suspect.cause,
                suspect.confidence,
                (*lines(suspect.signs), *self._lines(self.ranks)),
                self._culprits(ranks),
                self._who(ranks),
                waits_text(self.waiting),
                suspect.values,
            )
            for suspect, ranks in found_by_ras
            if ranks
        )

    def _counts(self) -> _Counts:
        counts: dict[str, Mapping[int, int]] = {}
        for launched in (launched for host in self.job.hosts for launched in host.launched):
            named = dict(launched.by_rank)
            if launched.others is not None:
                counts[launched.operation] = dict.fromkeys(range(self.job.world_size), launched.others) | named
            elif len(named) == self.job.world_size:
                counts[launched.operation] = named
        return counts

    def _by_counts(self, counts: _Counts) -> Judged:
        """Compare the ranks by majority only: counts show neither the order of calls nor which rank waits.

        They are not standings for the judge of waits: a rank that is behind may wait in a call of another group.
        """
        few: set[int] = set()
        for by_rank in counts.values():
            usual, _ = Counter(by_rank.values()).most_common(1)[0]
            few.update(rank for rank, count in by_rank.items() if count != usual)
        if 2 * len(few) >= max(map(len, counts.values())):
            few.clear()
        name, values = _of_counts(counts, few)
        blamed = self._those(few)
        may_compute = name == "rank-behind" and any(rank.kind == "gpu" or rank.moves for rank in blamed)
        sure = Confidence.LIKELY if few and not may_compute else Confidence.POSSIBLE
        found = self._found(name, sure, blamed or self.ranks, blamed, **values)
        detail = f"NCCL's RAS counts, the same in two answers: {_counts_text(counts)}."
        if not few:
            detail += " As many ranks are behind as ahead, so check both."
        elif may_compute:
            detail += f" It is unknown whether the GPU of {rank_list(sorted(few))} still computes."
        return replace(found, detail=f"{detail} {found.detail}".strip())

    # --- some cannot run ------------------------------------------------------------------------------

    def _cannot_run(self) -> Iterator[Judged]:
        unable = (rank for rank in self.ranks if rank.kind in ("stopped", "kernel"))
        for (kind, words), ranks in grouped(((rank.kind, rank.words), rank) for rank in unable).items():
            if kind == "stopped":
                yield self._found("rank-stopped", Confidence.PROVED, ranks, ranks, how=words)
            else:
                yield self._found("rank-in-kernel", Confidence.LIKELY, ranks, ranks, channel=words)

    def _gone(self, unable: Collection[int]) -> Iterator[Judged]:
        ended = {rank.rank: rank.words for rank in self.ranks if rank.kind == "gone" and rank.rank in unable}
        ended |= {rank: "" for rank in self.job.missing if rank in unable}
        others = self.able
        for how, ranks in grouped((how, rank) for rank, how in ended.items()).items():
            values = {
                "is": verb(ranks, "are"),
                "how": f"ended by {how}" if how.startswith("SIG") else "ended without an error" * (how == WELL) or how,
                "others": f"{names(others)} {verb(others, 'are')}" if others else "",
            }
            yield Judged(
                cause_named("rank-gone"),
                Confidence.LIKELY if how in ("", WELL) else Confidence.PROVED,
                tuple(self._lines([*self._those(ranks), *self.waiting])),
                self._culprits(ranks) if how != WELL else (),
                self._names(ranks),
                waits_text(self.waiting),
                values,
            )

    # --- some wait for others -------------------------------------------------------------------------

    def _at_work(self, working: Sequence[Doing]) -> Judged:
        first = max(working, key=lambda rank: rank.kind != "own")
        alike = [rank for rank in working if rank.kind == first.kind]
        does = first.words if len(alike) == 1 else plural(first.words)
        others = f"{names(self.waiting)} {verb(self.waiting, 'wait')}"
        worker = next((place(rank.helper_line) for rank in alike if rank.helper_line), "")
        values = {"does": does, "line": place(first.line), "others": others, "worker": worker}
        return self._found("others-wait-for-work", Confidence.PROVED, alike, (), **values)

    def _ended(self) -> tuple[Judged, ...]:
        codes = {rank.words for rank in self.ranks}
        if codes == {WELL}:
            return ()
        if codes - {"", WELL}:
            return tuple(self._gone([rank.rank for rank in self.ranks if rank.words not in ("", WELL)]))
        return (self._found("job-ended", Confidence.POSSIBLE, self.ranks, (), job=self.job.name),)

    def _late(self) -> tuple[Judged, ...]:
        late = last_to_come(self.ranks)
        if late is None:
            return ()
        last, line, looks, of = late
        rest = [rank for rank in self.ranks if rank is not last]
        others = f"{names(rest)} {verb(rest, 'wait')}"
        values = {"does": "is", "line": place(line), "looks": f"{looks} of {of}", "others": others}
        return (self._found("others-wait-for-work", Confidence.LIKELY, [last], (), **values),)

    def _outside(self, ruling: Ruling) -> Judged:
        still = self._those(ruling.who)
        loops = all(rank.loops for rank in still)
        at_one_place = len({rank.line for rank in still}) == 1 and still[0].line
        stands = f"{'looping' if loops else 'stuck'} at {place(still[0].line)}" if at_one_place else ""
        sure = Confidence.LIKELY if loops else ruling.sure
        found = self._found("stuck-outside-collective", sure, still, still, call=self._call, stands=stands)
        lines = (*found.lines[:1], *self._stack(still[0]), *found.lines[1:])
        return replace(found, lines=lines, remedies=_remedies_of_stuck(still[0]))

    def _no_data(self, loading: Sequence[Doing]) -> Judged:
        everyone = len(loading) == len(self.ranks) > 1
        stands = next((rank.helper_line for rank in loading if rank.helper_line), "")
        values = {"waits": verb(loading, "wait"), "line": place(stands)}
        return self._found("data-loader-stuck", Confidence.LIKELY, loading, () if everyone else loading, **values)

    # --- all wait -------------------------------------------------------------------------------------

    def _all_wait(self, ruling: Ruling) -> Judged:
        for rank in self.in_collective:
            for connection in rank.fact.unacknowledged:
                if connection.retransmissions >= _SENT_AGAIN:
                    return self._lost(rank, connection)
        if ruling.kind == "different-calls":
            return self._calls_do_not_meet(ruling)
        group_is_open = any(rank.fact.groups != 1 and not rank.fact.default_group for rank in self.in_collective)
        if group_is_open and len({(rank.call, rank.line) for rank in self.in_collective}) > 1:
            return self._groups_or_calls()
        if self.for_gpu or self.job.is_elsewhere:
            return self._not_known()
        call = called(self.waiting[0])
        return self._found("collective-stalled", Confidence.LIKELY, self.waiting, (), call=call)

    def _lost(self, rank: Doing, connection: Unacknowledged) -> Judged:
        peer_rank, host = connection.peer_rank, connection.peer.rpartition(":")[0]
        rank_at = {end: of.rank for of in self.ranks for end, _ in of.fact.connections}
        peer_rank = rank_at.get(connection.peer) if peer_rank is None else peer_rank
        peer = connection.peer if peer_rank is None else f"{self._names([peer_rank])}{self._on(peer_rank)}"
        node = host if peer_rank is None else self._node(peer_rank)
        ends = {"kind": "pair", "peer_rank": peer_rank, "peer_node": node}
        times = f"resent {connection.retransmissions} times"
        return Judged(
            cause_named("data-not-acknowledged"),
            Confidence.LIKELY,
            (
                self._line(rank, f"{connection.bytes:,} bytes to {peer} are not acknowledged, {times}"),
                *self._lines(self.waiting),
            ),
            (self._culprits([rank.rank])[0].model_copy(update=ends),),
            self._who([rank.rank]),
            waits_text(self.waiting),
            {"peer": peer},
        )

    def _groups_or_calls(self) -> Judged:
        found = self._found("cross-group-deadlock", Confidence.LIKELY, self.in_collective, ())
        if len({rank.call for rank in self.in_collective}) == 1:
            return found
        detail = f"{found.detail} The stacks do not show the groups of these calls. In one group, its ranks call"
        detail += " different collectives. In two groups, the ranks use them in different orders."
        otherwise = "in different collectives of one group"
        return replace(found, detail=detail, values={**found.values, "otherwise": otherwise})

    def _calls_do_not_meet(self, ruling: Ruling) -> Judged:
        who, blamed = self._those(ruling.who), self._those(ruling.suspects)
        rank = (blamed or self._those(min(ruling.sides, key=len)))[0]
        others = self._those([other for side in ruling.sides for other in side if other not in ruling.suspects])
        other = next(other for other in reversed(others) if other.call != rank.call)
        calls = {"rank": str(rank.rank), "op": called(rank), "peer_rank": str(other.rank), "peer_op": called(other)}
        values = calls if self.job.is_numbered else {}
        return self._found("collective-mismatch", ruling.sure, who, blamed, **values)

    # --- not known ------------------------------------------------------------------------------------

    def _not_known(self) -> Judged:
        refused = next((refused for rank in self.able for refused in rank.fact.refused), None)
        details = [f"{capital(refused.why)}." if refused else "", waits_text(self.waiting), busy_text(self.waiting)]
        return Judged(
            cause_named("progress-not-known"),
            Confidence.POSSIBLE,
            tuple(self._lines(self.able)),
            detail=" ".join(filter(None, details)),
            values={"what": self._what_is_known()},
            next_check=refused.grant if refused else "ray status" if self._is_in_ray else "",
        )

    @property
    def _is_in_ray(self) -> bool:
        return any("/ray/" in frame for rank in self.able for look in rank.fact.looks[-1:] for frame in look.frames)

    def _what_is_known(self) -> str:
        if ranks := [rank for rank in self.able if rank.kind == "unknown"]:
            was_refused = any(rank.fact.refused for rank in ranks)
            outside = f"{capital(names(ranks))} {verb(ranks, 'are')} not in Python code: the job starts or ends"
            return f"The stack{'s' * (len(ranks) > 1)} of {names(ranks)} could not be read" if was_refused else outside
        unclear = [rank for rank in self.outside if rank.moves is None] or self.outside
        waiting = [rank.rank for rank in self.waiting]
        if unclear and waiting:
            at = f" at {place(unclear[0].line)}" if unclear[0].line else ""
            who = self._who([rank.rank for rank in unclear])
            others = f"{names(self.waiting)} {verb(waiting, 'wait')}"
            does = unclear[0].words if len(unclear) == 1 else plural(unclear[0].words)
            helper = next((rank.helper_line for rank in unclear if rank.helper_line), "")
            worker = f" (its data loader worker is at {place(helper)})" if helper else ""
            return f"{who} {does}{at}{worker} while {others}: progress is unknown yet"
        if self.job.is_elsewhere and self.waiting:
            others = rank_list(self.job.unseen) if self.job.unseen else "other ranks"
            who = "All visible ranks" if len(waiting) == len(self.able) else self._who(waiting)
            does = "wait" if len(waiting) == len(self.able) else verb(waiting, "wait")
            return f"{who} {does} in {called(self.waiting[0])}: {others} were not read"
        if self.for_gpu:
            waits = f"{verb(self.for_gpu, 'wait')} for {'its GPU' if len(self.for_gpu) == 1 else 'their GPUs'}"
            return f"{self._who(waiting)} {waits}: GPU progress is unknown"
        places = {place(rank.line) for rank in self.able if rank.line}
        at = f" at {places.pop()}" if len(places) == 1 else ""
        if not self.job.is_numbered and not any(rank.fact.groups for rank in self.able):
            return f"{capital(names(self.able))} {verb(self.able, 'are')}{at} and in no process group"
        who, does = (self._who([rank.rank for rank in self.able]), "loop" if unclear and unclear[0].loops else "stay")
        return f"{who} {verb(self.able, does)}{at}, and no rank is in a collective"

    # --- names and lines ------------------------------------------------------------------------------

    def _found(
        self, name: str, confidence: Confidence, who: Sequence[Doing], culprits: Sequence[Doing], **values: str
    ) -> Judged:
        rest = [rank for rank in self.ranks if rank not in who]
        waiting = [rank for rank in self.waiting if rank not in who or len(who) == len(self.ranks)]
        return Judged(
            cause_named(name),
            confidence,
            tuple(self._lines([*who, *rest])),
            self._culprits([rank.rank for rank in culprits]),
            self._who([rank.rank for rank in who]),
            f"{waits_text(waiting)} {busy_text(self.waiting)}".strip(),
            {"is": verb(who, "are"), "hangs": verb(who, "hang"), **values},
            pid=culprits[0].fact.pid if len(culprits) == 1 else None,
        )

    def _who(self, ranks: Sequence[int]) -> str:
        pids = {rank.rank: f"pid {rank.fact.pid}{self._on(rank.rank)}" for rank in self.ranks}
        if len(ranks) > 1 and len(set(ranks)) == len(self.ranks) == self.job.world_size:
            return "both ranks" if len(ranks) == 2 else f"all {len(ranks)} ranks"
        if self.job.is_numbered and len(ranks) <= _EACH and all(rank in pids for rank in ranks):
            return " and ".join(f"{self._names([rank])} ({pids[rank]})" for rank in ranks)
        return self._names(ranks)

    def _names(self, ranks: Collection[int]) -> str:
        return rank_list([*ranks]) if self.job.is_numbered else names(self._those(ranks))

    def _culprits(self, ranks: Iterable[int]) -> tuple[Culprit, ...]:
        gpus = {rank.rank: rank.fact.gpu for rank in self.ranks}
        return tuple(
            Culprit(
                kind="rank",
                rank=rank if self.job.is_numbered else None,
                node=self._node(rank),
                gpu=gpus.get(rank),
                name=None if self.job.is_numbered else self._names([rank]),
            )
            for rank in ranks
        )

    def _node(self, rank: int) -> str | None:
        hosts = {rank.rank: rank.fact.host for rank in self.ranks}
        return hosts.get(rank) or self.job.missing.get(rank)

    def _on(self, rank: int) -> str:
        return f" on {self._node(rank)}" if len(self.job.hosts) > 1 else ""

    def _lines(self, ranks: Iterable[Doing]) -> Iterator[LogLine]:
        alike = grouped(((rank.fact.host, says(rank)), rank) for rank in ranks)
        for (host, text), several in list(alike.items())[:_MOST_LINES]:
            if len(several) == 1:
                yield self._line(several[0], text)
            else:
                yield LogLine(file=f"{names(several)} on {host}", line=0, text=text)

    def _stack(self, rank: Doing) -> Iterator[LogLine]:
        frames = next((look.frames for look in reversed(rank.fact.looks) if look.frames), ())
        if frames:
            cut = "… > " * (len(frames) > _MOST_FRAMES)
            yield self._line(rank, f"stack: {cut}{' > '.join(map(short, frames[-_MOST_FRAMES:]))}")
        if rank.fact.kernel:
            where = rank.fact.looks[-1].wait_channel
            yield self._line(rank, f"kernel: waits in {rank.fact.kernel}{f' ({where})' if where else ''}")

    def _line(self, rank: Doing, text: str) -> LogLine:
        who, host = names([rank]), rank.fact.host
        place = f"{who} (pid {rank.fact.pid} on {host})" if rank.is_numbered else f"{who} on {host}"
        return LogLine(file=place, line=0, text=text)


def _remedies_of_stuck(rank: Doing) -> tuple[Remedy, ...]:
    at, kernel = place(rank.line) if rank.line else "this line", rank.fact.kernel
    if rank.loops:
        first = f"Make the loop at {at} end on every rank"
    elif kernel.endswith(", a sleep"):
        first = f"Remove the sleep at {at}, or let all ranks sleep before the collective"
    elif kernel:
        first = f"Provide what {at} waits for ({kernel}), and set a timeout for such waits"
    else:
        first = f"Find out what {at} waits for, and set a timeout for such waits"
    return in_code(first), cause_named("stuck-outside-collective").remedies[-1]


def _of_counts(counts: _Counts, few: Collection[int]) -> tuple[str, dict[str, str]]:
    """Return the cause and the values of its title, for the first of the few ranks, or for one that is behind."""
    fewest = {operation: min(of, key=lambda rank: of[rank]) for operation, of in counts.items()}
    who = min(few) if few else next(iter(fewest.values()))
    behind = [operation for operation, of in counts.items() if of[who] < max(of.values())]
    ahead = [operation for operation, of in counts.items() if of[who] > min(of.values())]
    if behind and ahead:
        other = max(counts[behind[0]], key=lambda rank: counts[behind[0]][rank])
        calls = {"op": _operation(ahead[0]), "peer_op": _operation(behind[0])}
        return "collective-mismatch", {"rank": str(who), "peer_rank": str(other), **calls}
    if ahead:
        return "rank0-only-collective", {"call": _operation(ahead[0])}
    of = counts[behind[0]]
    return "rank-behind", {"rank": str(who), "launched": str(of[who]), "most": str(max(of.values()))}


def _counts_text(counts: _Counts) -> str:
    parts = []
    for operation, by_rank in counts.items():
        ranks_of = sorted(grouped((count, rank) for rank, count in by_rank.items()).items(), reverse=True)
        each = (f"{count or 'none'} on {rank_list(ranks)}" for count, ranks in ranks_of)
        parts.append(f"{_operation(operation)} {', '.join(each)}")
    return "; ".join(parts)


def _operation(name: str) -> str:
    return collective_name(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name))
