"""A job's collectives, run again by ranks of the doctor's own: do they hang by themselves, where the job hung?

Raw input: what ``--replay`` names, dumps of torch's flight recorder or a recording of ``trace``. Of each rank they hold
the collectives in the order of being called, each with its group, its number there, shapes and types:

    {"record_id": 17, "process_group": ["2", "dp"], "collective_seq_id": 4, "profiling_name": "gloo:all_reduce",
     "input_sizes": [[1024]], "input_dtypes": ["Float"], "retired": false, …}

What hangs here hangs by the order, sizes or groups of the calls, whatever the machines do; what comes through does not.
It comes last: a rank that hangs in it is of no use to another check.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddp_doctor.facts.job_collectives import JobCollectivesFact
from ddp_doctor.model.check import JOB_COLLECTIVES, Check
from ddp_doctor.model.choices import Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Failed, Skip
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.job_collectives import JobCall, JobCollectives
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.job_collectives import Replay
from ddp_doctor.remedies.kinds import in_code
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, finding, possible, proved
from ddp_doctor.wording.ranks import assumed, capital, rank_culprit, rank_list, where_they_wait

_MOST_KINDS = 8


def probe(ctx: RankContext) -> JobCollectivesFact:
    """Make this rank's calls; how far it came."""
    job = ctx.options.replay
    if job is None:
        raise Skip("needs the collectives of a job: --replay")
    if job.world not in (None, ctx.world_size):
        raise Failed(f"{job.source} have {job.world} ranks, and {ctx.world_size} run")
    with ctx.step("new_group", f"{len(job.groups)} groups"):
        replay = Replay(ctx, job)
    return replay.run()


@dataclass(frozen=True)
class _Replayed:
    """A replay of which every rank told how far it came. Waits are the first open calls in each group, by rank."""

    job: JobCollectives
    facts: Mapping[int, JobCollectivesFact]

    @property
    def waits(self) -> dict[int, tuple[JobCall, ...]]:
        """Where ranks stand in the replay; of those that stopped before a call that differs, in that one."""
        found = {}
        for rank, fact in self.facts.items():
            calls = self.job.calls_of(rank)
            stands = [calls[index] for index in sorted(fact.open)]
            found[rank] = _first_of_each_group(stands + list(calls[fact.issued :][: fact.stopped == "differs"]))
        return {rank: calls for rank, calls in found.items() if calls}

    @property
    def waited(self) -> dict[int, tuple[JobCall, ...]]:
        """Where they stood in the job, by its recorder."""
        known = set(self.facts) - {*self.job.unknown}
        found = {rank: _first_of_each_group([c for c in self.job.calls_of(rank) if c.is_open]) for rank in known}
        return {rank: calls for rank, calls in found.items() if calls}

    @property
    def stops(self) -> set[str]:
        return {fact.stopped for fact in self.facts.values()}

    @property
    def hangs_as_the_job(self) -> bool:
        """Whether every rank whose place in the job is known stands in the same collectives here."""
        places = [
            {rank: {call.place for call in calls} for rank, calls in waits.items() if rank not in self.job.unknown}
            for waits in (self.waits, self.waited)
        ]
        return bool(places[1]) and places[0] == places[1] and self.stops <= {"", "hung"}

    def where(self, waits: Mapping[int, tuple[JobCall, ...]]) -> str:
        """``ranks 0, 1 wait in all_reduce 18 of group 2``."""
        places = ((f"in {self.job.words(call)}", rank) for rank, calls in waits.items() for call in calls)
        return (words := where_they_wait(places))[:1].lower() + words[1:]

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """How far the ranks came, and where each stands."""
        through = sum(fact.issued - len(fact.open) for fact in self.facts.values())
        lines = [f"{through} calls of {len(self.facts)} ranks ended, {self.seconds:.1f} s"]
        for rank, fact in sorted(self.facts.items()):
            stands = ", ".join(map(self.job.words, self.waits.get(rank, ())))
            end = (
                "it is at the end of its calls" if fact.issued == len(self.job.calls_of(rank)) else "it goes no further"
            )
            lines.append(f"rank {rank}: {fact.issued} calls made; {f'stands in {stands}' if stands else end}")
        return tuple(Evidence(check=JOB_COLLECTIVES, text=line) for line in lines[:LINES_OF_EVIDENCE])

    @property
    def seconds(self) -> float:
        return max(fact.seconds for fact in self.facts.values())


def _first_of_each_group(calls: list[JobCall]) -> tuple[JobCall, ...]:
    return tuple({call.group: call for call in reversed(calls)}.values())


@once_a_recording
def _replayed(recording: Recording) -> _Replayed | None:
    job, facts = recording.options.replay, recording.facts(JobCollectivesFact)
    world = recording.world.world_size if recording.world else 0
    if job is None or not facts or len(facts) < world:
        return None
    return _Replayed(job, {at.rank or 0: at.fact for at in facts})


def _remedy(job: JobCollectives, summary: str) -> Remedy:
    ranks = f" --nproc-per-node {job.world}" if job.world else ""
    again = f"ddp-doctor run --replay {shlex.quote(job.path)} --only {JOB_COLLECTIVES}{ranks}"
    return in_code(summary, f"{again} --reproducer reproducer.py   # a script for a bug report")


def _culprits(recording: Recording, replayed: _Replayed) -> tuple[Culprit, ...]:
    return tuple(rank_culprit(recording, rank) for rank in replayed.job.blamed)


@rule("DD650", "job-hangs-by-its-collectives", Severity.ERROR, JobCollectivesFact)
def hangs(recording: Recording) -> Iterator[Draft]:
    """The job's collectives hang here as they did in the job.

    Finds: With ``--replay`` the job's calls in their order, made by ranks that do nothing else; they stand in the same
        collectives as the job's ranks in the dumps. Who is named is whom the dumps name, as `ddp-doctor logs` does.
    Why: The calls that were recorded cannot all meet, on any network or GPU: a rank calls its groups in another order,
        leaves a call out, or came no further because it stood still or was gone.
    Remedy: Look for what makes this rank's calls differ: a condition on the rank or on data, an early end of a loop.
        Where its calls end too early, look at where it stood: `ddp-doctor attach`, its stack, its last output.
    See: docs/how-to/read-the-output-of-a-failed-job.md
    """
    replayed = _replayed(recording)
    if replayed is None or not replayed.hangs_as_the_job:
        return
    job, waits = replayed.job, replayed.waits
    never_came = bool(job.blamed) and waits.keys().isdisjoint(job.blamed)
    does = "never came" if never_came else "made calls that do not meet the others'"
    who = f"{capital(rank_list(job.blamed))} {does}; " if job.blamed else ""
    says = f"By {job.source}: {job.says}" if job.says else ""
    if never_came:
        says += " Whether it left the call out or stood still in its own code, no recorder tells."
        cure = (
            "Look at where it stood, by its stack or last output; else at the condition by which it leaves the call out"
        )
    else:
        cure = "Look in the script at the condition or the order by which these calls differ from the others'"
    title = f"{who}{'the' if who else 'The'} replay hangs where the job hung: {replayed.where(waits)}"
    yield finding(
        _culprits(recording, replayed),
        title,
        replayed.evidence,
        _remedy(job, cure),
        confidence=job.confidence,
        detail=says.strip(),
    )


@rule("DD651", "job-calls-differ", Severity.ERROR, JobCollectivesFact)
def calls_differ(recording: Recording) -> Iterator[Draft]:
    """Ranks of the job called different things where they had to meet.

    Finds: A number of a process group at which ranks called different operations, sizes or types. The replay makes all
        calls before it and stops there: what comes of it no backend defines, and gloo ends a rank.
    Why: NCCL hangs or returns wrong numbers, gloo aborts, each without naming the rank.
    Remedy: Make all ranks of the group call the same there: equal shapes, types and order.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    replayed = _replayed(recording)
    if replayed is None or "differs" not in replayed.stops:
        return
    job = replayed.job
    at = min(
        (job.calls_of(rank)[fact.issued] for rank, fact in replayed.facts.items() if fact.stopped == "differs"),
        key=lambda call: call.place,
    )
    called = {rank: call for rank in replayed.facts for call in job.calls_of(rank) if call.place == at.place}
    sides = Counter(_shape(call) for call in called.values())
    said = "; ".join(
        f"{rank_list([rank for rank, call in called.items() if _shape(call) == side])} called {side}" for side in sides
    )
    title = f"{capital(rank_list(job.blamed))} differed from the others" if job.blamed else "Ranks of the job differed"
    yield finding(
        _culprits(recording, replayed),
        f"{title} at number {at.seq} of {job.groups[at.group].words}: {said}",
        replayed.evidence,
        _remedy(job, "Make the same call on all ranks of the group there: look at what its shape or order depends on"),
        confidence=job.confidence,
        detail=f"The replay made all calls before it.{f' By {job.source}: {job.says}' if job.says else ''}",
    )


def _shape(call: JobCall) -> str:
    return f"{call.op} of {call.elements} {call.dtype}" if call.elements else call.op


@rule("DD652", "job-collectives-run-through", Severity.INFO, JobCollectivesFact)
def run_through(recording: Recording) -> Iterator[Draft]:
    """The job's collectives came through here.

    Finds: With ``--replay`` all calls of all ranks ended; the time of each kind of them.
    Why: Where the job hung, it was not by the order, sizes or groups of its collectives, as far as they were recorded,
        but by what stands between them, or by a rank, a GPU or a link of that job.
    Remedy: `ddp-doctor logs` names who waited for whom; `ddp-doctor run` tests the machines of the job.
    See: docs/how-to/read-the-output-of-a-failed-job.md
    """
    replayed = _replayed(recording)
    if replayed is None or replayed.stops != {""}:
        return
    job, first = replayed.job, replayed.facts[min(replayed.facts)]
    moved = max(fact.moved_bytes for fact in replayed.facts.values())
    title = (
        f"The job's {job.count} collectives of {len(job.groups)} group{'s' * (len(job.groups) != 1)} ran through in"
        f" {replayed.seconds:.2g} s;"
        f" a rank gave {moved:,} bytes at most"
    )
    detail = ""
    if replayed.waited:
        detail = f"In the job, {replayed.where(replayed.waited)}; "
        if assumed(job):
            detail += f"here {assumed(job)}, of which nothing was recorded, made the calls of the others, and all met."
        elif not job.left_out:
            detail += "not by the order, sizes or groups of these calls: here all met."
        else:
            detail += "here all that was run has met."
    if first.largest_bytes:
        detail += f" Tensors larger than {first.largest_bytes >> 10} KiB were cut to that."
    yield proved(
        NOBODY,
        title,
        [
            Evidence(
                check=JOB_COLLECTIVES,
                text=f"{kind.op} of {kind.size_bytes} bytes in {kind.ranks} ranks, {kind.calls} times",
                value=round(kind.median_s * 1e3, 3),
                unit="ms",
            )
            for kind in first.kinds[:_MOST_KINDS]
        ],
        detail=detail.strip(),
    )


@rule("DD653", "replay-hangs-elsewhere", Severity.ERROR, JobCollectivesFact)
def hangs_elsewhere(recording: Recording) -> Iterator[Draft]:
    """The replay hangs, and not where the job did.

    Finds: Ranks of the replay that stand in other collectives than the job's ranks in the dumps, or hang where the job
        went on.
    Why: The calls may hang by their order, which was luck in the job; or a link of these machines does not carry them.
        Which of both is not known, so nobody is named.
    Remedy: Run the standard checks, `ddp-doctor run`, on these machines first; then look at the order of the groups.
    See: docs/explanation/hangs.md
    """
    replayed = _replayed(recording)
    if replayed is not None and replayed.stops in ({"hung"}, {"", "hung"}) and not replayed.hangs_as_the_job:
        where = f"in the job {replayed.where(replayed.waited)}" if replayed.waited else "the job did not hang"
        title = f"The job's collectives hang here: {replayed.where(replayed.waits)}; {where}"
        yield possible(NOBODY, title, replayed.evidence)


def _measurements(recording: Recording) -> Iterator[Measurement]:
    for at in recording.facts(JobCollectivesFact):
        for kind in at.fact.kinds:
            labels: dict[str, str | int | float] = {
                "rank": at.rank or 0,
                "collective": kind.op,
                "ranks": kind.ranks,
                "size_bytes": kind.size_bytes,
            }
            yield Measurement(name="job_collective_time", value=kind.median_s, unit="s", labels=labels)


CHECK = Check(
    id=JOB_COLLECTIVES,
    title="A job's collectives, run again",
    where=Where.RANK,
    probe=probe,
    facts=(JobCollectivesFact,),
    rules=(hangs, calls_differ, run_through, hangs_elsewhere),
    min_ranks=2,
    cost_s=10.0,
    deadline_s=60.0,
    needs_job=True,
    measurements=_measurements,
)
