"""Who keeps a job that runs from getting on; pure. What each rank does is worked out in views/live_ranks.py.

1. A rank that cannot run (gone, stopped, in the kernel) keeps all others waiting, whatever they do.
2. Where something moves that waiting cannot explain, the job gets on; a rank at work for which others wait is named
   as that.
3. Else those who wait in a collective wait for the ranks outside of it.
4. Where all wait: a connection that loses data; calls that do not meet, of which the minority is named where all are of
   one group; or all are in the same call, and nobody is to blame.

Where ranks hand out their flight recorders, those say who waits for whom (wait_graph.py), better than stacks do; where
NCCL's RAS answers, that counts before "not known". An innocent is never named: where the looks do not tell, the answer
is "not known".
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from ddp_doctor.engine.causes import wait_graph
from ddp_doctor.engine.causes.evidence import Output, lines, suspects
from ddp_doctor.engine.causes.judged import Judged
from ddp_doctor.engine.causes.live_counts import by_counts
from ddp_doctor.engine.causes.live_named import CAUSES, Named
from ddp_doctor.engine.causes.live_unable import cannot_run, gone
from ddp_doctor.engine.hang.judgement import minority
from ddp_doctor.facts.job_log import JobLogFact
from ddp_doctor.facts.live_job import Refused, Unacknowledged
from ddp_doctor.knowledge.live_frames import ROOTED
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.views.live_jobs import LiveJob, live_jobs
from ddp_doctor.views.live_ranks import Doing, last_to_come
from ddp_doctor.wording.live_ranks import busy_text, called, collective_of, place, plural, verb, waits_text
from ddp_doctor.wording.ranks import capital, rank_list

#: So often the same data was sent again in a row.
_SENT_AGAIN = 2
#: What flight recorders tell better, by groups and numbers of collectives.
_BY_STACKS_ALONE = (
    "progress-not-known",
    "collective-stalled",
    "cross-group-deadlock",
    "collective-mismatch",
    "rank0-only-collective",
)
#: What ranks that nobody looked at may explain.
_OF_ALL_RANKS = (
    "cross-group-deadlock",
    "collective-mismatch",
    "rank0-only-collective",
    "collective-stalled",
    "stuck-outside-collective",
)
#: What they tell of ranks whose recorder did not answer, or of none: attach has looked at those.
_NOT_OF_RECORDERS = ("rank-unreachable", "collective-stalled")


@once_a_recording
def blamed(recording: Recording) -> frozenset[tuple[str, int]]:
    """The jobs and numbers of the ranks that are to blame."""
    found = ((job, _Job(job).judged()) for job in live_jobs(recording))
    alone = judged(recording) if len(live_jobs(recording)) == 1 else None
    return frozenset(
        (job.name, culprit.rank)
        for job, causes in found
        for cause in (causes if alone is None else alone)
        for culprit in cause.culprits
        if culprit.rank is not None
    )


@once_a_recording
def judged(recording: Recording) -> tuple[Judged, ...]:
    """What keeps the jobs of a recording of attach, one after the other; () where all get on."""
    jobs = [_Job(job) for job in live_jobs(recording)]
    found = tuple(cause for job in jobs for cause in job.judged())
    if len(jobs) != 1 or len(found) != 1 or found[0].cause.name not in _BY_STACKS_ALONE:
        return found
    return jobs[0].by_recorders(recording) or jobs[0].by_ras(recording, found[0]) or found


class _Job(Named):
    """One job."""

    def __init__(self, job: LiveJob) -> None:
        super().__init__(job)
        self.outside = [one for one in self.able if one.kind not in ("collective", "gpu")]

    def judged(self) -> tuple[Judged, ...]:
        if unable := (*cannot_run(self), *gone(self)):
            return unable
        working = [one for one in self.outside if one.moves]
        if any(one.moves for one in self.able if one not in self.outside) or (working and not self.waiting):
            return self._late()
        if working:
            return (self._at_work(working),)
        found = self._stands_still()
        is_proved = found.confidence is Confidence.PROVED
        if self.job.is_elsewhere and found.cause.name in _OF_ALL_RANKS and not is_proved:
            return (self._not_known(),)
        return (found,)

    def _stands_still(self) -> Judged:
        still = [one for one in self.outside if one.moves is False]
        loading = [one for one in still if one.has_loaders]
        if loading:
            return self._no_data(loading)
        if not self.waiting or any(one.kind == "unknown" for one in self.outside):
            return self._not_known()
        if still:
            return self._outside(still)
        return self._not_known() if self.outside else self._all_wait()

    # --- by what the job itself says ------------------------------------------------------------------

    def by_recorders(self, recording: Recording) -> tuple[Judged, ...]:
        """What the flight recorders tell, with what the ranks do now."""
        found = []
        for one in wait_graph.judged(recording):
            if one.cause.name not in _NOT_OF_RECORDERS:
                blamed = [culprit.rank for culprit in one.culprits if culprit.rank is not None]
                seen = (*self.lines(self._first(one)), *one.lines)
                found.append(replace(one, lines=seen, culprits=self.culprits(blamed)))
        return tuple(found)

    def _first(self, found: Judged) -> list[Doing]:
        """The ranks, those to blame first."""
        blamed = {culprit.rank for culprit in found.culprits}
        return sorted(self.ranks, key=lambda one: one.rank not in blamed)

    def by_ras(self, recording: Recording, instead_of: Judged) -> tuple[Judged, ...]:
        """The rank that RAS sees behind, ahead, or not at all, where nothing better is known."""
        if instead_of.cause.name not in ("progress-not-known", "collective-stalled"):
            return ()
        if found := by_counts(self):
            return (found,)
        said = [
            (one, sorted({int(sign.values["rank"]) for sign in one.signs if sign.values.get("rank")}))
            for at in recording.facts(JobLogFact)
            for one in suspects(Output(at.fact))
            if one.tier == "ras" and one.cause.name != "rank-behind"
        ]
        return tuple(
            Judged(
                one.cause,
                one.confidence,
                (*lines(one.signs), *self.lines(self.ranks)),
                self.culprits(ranks),
                self.who(ranks),
                waits_text(self.waiting),
                one.values,
            )
            for one, ranks in said
            if ranks
        )

    # --- some wait for others -------------------------------------------------------------------------

    def _at_work(self, working: Sequence[Doing]) -> Judged:
        first = max(working, key=lambda one: one.kind != "own")
        alike = [one for one in working if one.kind == first.kind]
        does = first.words if len(alike) == 1 else plural(first.words)
        waiting = [one.rank for one in self.waiting]
        others = f"{rank_list(waiting)} {verb(waiting, 'wait')}"
        worker = next((place(one.helper_line) for one in alike if one.helper_line), "")
        values = {"does": does, "line": place(first.line), "others": others, "worker": worker}
        return self.found("others-wait-for-work", Confidence.PROVED, alike, (), **values)

    def _late(self) -> tuple[Judged, ...]:
        """Of a job that gets on: the rank for which the others wait in each step."""
        late = last_to_come(self.ranks)
        if late is None:
            return ()
        one, line, looks, of = late
        numbers = [other.rank for other in self.ranks if other is not one]
        others = f"{rank_list(numbers)} {verb(numbers, 'wait')}"
        values = {"does": "is", "line": place(line), "looks": f"{looks} of {of}", "others": others}
        return (self.found("others-wait-for-work", Confidence.LIKELY, [one], (), **values),)

    def _outside(self, still: Sequence[Doing]) -> Judged:
        call = " or ".join(dict.fromkeys(map(collective_of, self.in_collective))) or "a collective on the GPU"
        if len(self.waiting) < len(still):
            return self.found("rank0-only-collective", Confidence.LIKELY, self.waiting, (), call=call)
        loops = all(one.loops for one in still)
        does, it = "loop" if loops else "stand", "it" if len(still) == 1 else "they"
        at_one_place = len({one.line for one in still}) == 1 and still[0].line
        stands = f"{it} {verb(still, does)} at {place(still[0].line)}" if at_one_place else ""
        # A GPU for which a rank waits may still compute.
        sure = len(still) < len(self.in_collective) and not loops
        confidence = Confidence.PROVED if sure else Confidence.LIKELY
        found = self.found("stuck-outside-collective", confidence, still, still, call=call, stands=stands)
        return replace(found, lines=(*found.lines[:1], *self.stands(still[0]), *found.lines[1:]))

    def _no_data(self, loading: Sequence[Doing]) -> Judged:
        everyone = len(loading) == len(self.ranks) > 1
        stands = next((one.helper_line for one in loading if one.helper_line), "")
        values = {"waits": verb(loading, "wait"), "line": place(stands)}
        blamed = () if everyone else loading
        return self.found("data-loader-stuck", Confidence.LIKELY, loading, blamed, **values)

    # --- all wait -------------------------------------------------------------------------------------

    def _all_wait(self) -> Judged:
        for one in self.in_collective:
            for connection in one.fact.unacknowledged:
                if connection.retransmissions >= _SENT_AGAIN:
                    return self._lost(one, connection)
        of_default = [one for one in self.in_collective if one.fact.groups == 1 or one.fact.default_group]
        if len({one.call for one in of_default}) > 1:
            return self._calls_do_not_meet(of_default)
        of_others = len(self.in_collective) - len(of_default)
        if of_others and len({(one.call, one.line) for one in self.in_collective}) > 1:
            return self._groups_or_calls()
        if self.for_gpu or self.job.is_elsewhere:
            return self._not_known()
        call = called(self.waiting[0])
        return self.found("collective-stalled", Confidence.LIKELY, self.waiting, (), call=call)

    def _lost(self, one: Doing, connection: Unacknowledged) -> Judged:
        """A connection that sends the same again and again."""
        seen, host = connection.peer_rank, connection.peer.rpartition(":")[0]
        rank_at = {end: of.rank for of in self.ranks for end, _ in of.fact.connections}
        seen = rank_at.get(connection.peer) if seen is None else seen
        peer = connection.peer if seen is None else f"rank {seen}{self.on(seen)}"
        ends = {"kind": "pair", "peer_rank": seen, "peer_node": host if seen is None else self.node(seen)}
        times = f"sent {connection.retransmissions} times again"
        said = f"{connection.bytes:,} bytes to {peer} are not acknowledged, {times}"
        return Judged(
            CAUSES["data-not-acknowledged"],
            Confidence.LIKELY,
            (self.line(one, said), *self.lines(self.waiting)),
            (self.culprits([one.rank])[0].model_copy(update=ends),),
            self.who([one.rank]),
            waits_text(self.waiting),
            {"peer": peer},
        )

    def _groups_or_calls(self) -> Judged:
        """Of ranks that handed over a group, or of which that is not known, the stacks do not tell which one."""
        found = self.found("cross-group-deadlock", Confidence.LIKELY, self.in_collective, ())
        if len({one.call for one in self.in_collective}) == 1:
            return found
        detail = f"{found.detail} Which groups these are on, the stacks do not tell: if it is one, its ranks call"
        detail += " different collectives; else they take two groups in different orders."
        otherwise = "in different collectives of one group"
        return replace(found, detail=detail, values={**found.values, "otherwise": otherwise})

    def _calls_do_not_meet(self, ranks: Sequence[Doing]) -> Judged:
        """Different calls of these ranks, in one group."""
        by_call: dict[str, list[Doing]] = defaultdict(list)
        for one in ranks:
            by_call[one.call].append(one)
        can_compare = "wait" not in by_call and by_call.keys().isdisjoint(ROOTED)
        knows_all = can_compare and len(ranks) == len(self.in_collective)
        odd = minority([[one.rank for one in group] for group in by_call.values()]) if knows_all else ()
        blamed = [one for one in ranks if one.rank in odd]
        one = (blamed or min(by_call.values(), key=len))[0]
        other = next(of for of in reversed(ranks) if of.call != one.call and of.rank not in odd)
        values = {"rank": str(one.rank), "op": called(one), "peer_rank": str(other.rank), "peer_op": called(other)}
        who = blamed or ranks
        return self.found("collective-mismatch", Confidence.LIKELY, who, blamed, **values)

    # --- not known ------------------------------------------------------------------------------------

    def _not_known(self) -> Judged:
        refused = self._refused
        details = [f"{capital(refused.why)}." if refused else "", waits_text(self.waiting), busy_text(self.waiting)]
        return Judged(
            CAUSES["progress-not-known"],
            Confidence.POSSIBLE,
            tuple(self.lines(self.able)),
            detail=" ".join(filter(None, details)),
            values={"what": self._what_is_known()},
            next_check=refused.grant if refused else "",
        )

    def _what_is_known(self) -> str:
        if ranks := [one.rank for one in self.able if one.kind == "unknown"]:
            return f"The stack{'s' * (len(ranks) > 1)} of {rank_list(ranks)} could not be read"
        unclear = [one for one in self.outside if one.moves is None] or self.outside
        waiting = [one.rank for one in self.waiting]
        if unclear and waiting:
            at = f" at {place(unclear[0].line)}" if unclear[0].line else ""
            who = self.who([one.rank for one in unclear])
            others = f"{rank_list(waiting)} {verb(waiting, 'wait')}"
            does = unclear[0].words if len(unclear) == 1 else plural(unclear[0].words)
            helper = next((one.helper_line for one in unclear if one.helper_line), "")
            worker = f" (a worker of its data loader stands at {place(helper)})" if helper else ""
            return f"{who} {does}{at}{worker} while {others}: whether that ends shows only later"
        if self.job.is_elsewhere and self.waiting:
            others = f"only {rank_list(self.job.unseen)} can tell" if self.job.unseen else "only others can tell"
            who = "All ranks that were seen" if len(waiting) == len(self.able) else self.who(waiting)
            does = "wait" if len(waiting) == len(self.able) else verb(waiting, "wait")
            return f"{who} {does} in {called(self.waiting[0])}; for whom, {others}, which nobody has seen"
        if self.for_gpu:
            said = f"{verb(self.for_gpu, 'wait')} for {'its GPU' if len(self.for_gpu) == 1 else 'their GPUs'}"
            return f"{self.who(waiting)} {said}, and nothing shows whether work goes on there"
        places = {place(one.line) for one in self.able if one.line}
        at = f" at {places.pop()}" if len(places) == 1 else ""
        who, does = (self.who([one.rank for one in self.able]), "loop" if unclear and unclear[0].loops else "stand")
        return f"{who} {verb(self.able, does)}{at}, and no rank is in a collective"

    @cached_property
    def _refused(self) -> Refused | None:
        return next((refused for one in self.able for refused in one.fact.refused), None)
