"""A job's collectives, replayed by ddp-doctor's own ranks: whether they hang by themselves where the job hung.

Raw input: the files of ``--collectives-of``, dumps of torch's flight recorder or a recording of ``trace``. For each
rank, they hold the collectives in call order, each with its group, its sequence number there, shapes and types:

    {"record_id": 17, "process_group": ["2", "dp"], "collective_seq_id": 4, "profiling_name": "gloo:all_reduce",
     "input_sizes": [[1024]], "input_dtypes": ["Float"], "retired": false, …}

Why it matters: a replay that hangs shows that the order, sizes or groups of the calls are wrong, independent of the
machines. If it passes, they are right. The replay runs last, because other checks cannot use a rank that hangs in it.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddp_doctor.facts.job_collectives import JobCollectivesFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import JOB_COLLECTIVES, Check
from ddp_doctor.model.choices import Consequence, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Failed, Skip
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.job_collectives import JobCall, JobCollectives
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.probing.job_collectives import Replay
from ddp_doctor.remedies.kinds import in_code
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, NOBODY, finding, likely, proved
from ddp_doctor.wording.ranks import capital, rank_culprit, rank_list, where_they_wait

#: Maximum number of a rank's calls with one sequence number to list in a sentence.
_MOST_CALLED = 4


def probe(ctx: RankContext) -> JobCollectivesFact:
    """Make this rank's calls and return its progress."""
    job = ctx.options.replay
    if job is None:
        raise Skip("requires --collectives-of with the collectives of a job")
    if len(job.ranks) != ctx.world_size:
        raise Failed(
            f"the job of --collectives-of has {len(job.ranks)} ranks, but this run has {ctx.world_size}; run the same"
            " number of ranks"
        )
    with ctx.step("new_group", f"{len(job.groups)} groups"):
        replay = Replay(ctx, job)
    return replay.run()


@dataclass(frozen=True)
class _Replayed:
    """A replay with the progress of every rank. Waits are the first open calls in each group, by rank."""

    job: JobCollectives
    facts: Mapping[int, JobCollectivesFact]  # by rank
    waits: dict[int, tuple[JobCall, ...]]  # in the replay
    waited: dict[int, tuple[JobCall, ...]]  # in the job, according to its recorder
    differing: dict[int, str]  # each rank's call at the first sequence number where the replay had to stop
    number: str  # that number: "4 of group 2"

    @property
    def stops(self) -> set[str]:
        return {fact.stopped for fact in self.facts.values()}

    @property
    def hangs(self) -> bool:
        """True if recorded calls hang; not if some calls are assumed, because those may hang on their own."""
        return self.stops in ({"hung"}, {"", "hung"}) and not self.job.unknown

    @property
    def hangs_as_the_job(self) -> bool:
        """True if every rank waits in the same collectives as in the job."""
        return self.hangs and self.waits == self.waited

    def where(self, waits: Mapping[int, tuple[JobCall, ...]]) -> str:
        """Return ``ranks 0, 1 wait in all_reduce 18 of group 2``."""
        places = ((f"in {self.job.words(call)}", rank) for rank, calls in waits.items() for call in calls)
        return (words := where_they_wait(places))[:1].lower() + words[1:]

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The progress of the ranks and the collectives that they wait in."""
        lines = []
        for rank, fact in sorted(self.facts.items()):
            stands = ", ".join(map(self.job.words, self.waits.get(rank, ())))
            of = len(self.job.ranks[rank])
            lines.append(f"rank {rank}: {fact.issued} of {of} calls made{f'; is in {stands}' if stands else ''}")
        return tuple(Evidence(check=JOB_COLLECTIVES, text=line) for line in lines[:LINES_OF_EVIDENCE])


@once_a_recording
def _replayed(recording: Recording) -> _Replayed | None:
    job, facts = recording.options.replay, {at.rank or 0: at.fact for at in recording.facts(JobCollectivesFact)}
    if job is None or len(facts) < len(job.ranks):
        return None
    waits = {rank: [job.ranks[rank][index] for index in sorted(fact.open)] for rank, fact in facts.items()}
    waited = {rank: [call for call in calls if call.is_open] for rank, calls in enumerate(job.ranks)}
    stopped = [job.ranks[rank][fact.issued] for rank, fact in facts.items() if fact.stopped == "differs"]
    first = min((call.place for call in stopped), default=None)
    differing = {}
    for rank in sorted(facts.keys() - {*job.unknown}):
        called = dict.fromkeys(
            f"{call.op} of {call.elements} {call.dtype}" if call.elements else call.op
            for call in job.ranks[rank]
            if call.place == first
        )
        if called:  # several if they were coalesced
            differing[rank] = " and ".join([*called][:_MOST_CALLED])
    number = f"{first[1]} of {job.groups[first[0]].words}" if first else ""
    return _Replayed(job, facts, _first_of_each_group(waits), _first_of_each_group(waited), differing, number)


def _first_of_each_group(calls: Mapping[int, list[JobCall]]) -> dict[int, tuple[JobCall, ...]]:
    return {
        rank: tuple({call.group: call for call in reversed(of_rank)}.values())
        for rank, of_rank in calls.items()
        if of_rank
    }


@rule("DD650", "job-hangs-by-its-collectives", Consequence.HANGS, JobCollectivesFact)
def hangs(recording: Recording) -> Iterator[Draft]:
    """The job's collectives cannot all complete.

    Finds: With ``--collectives-of``, the ranks make only the job's calls in their order. Reported if they hang in the
        same collectives as the job's ranks in the dumps, or if ranks of the job called different operations, sizes or
        types at the same sequence number of a group. The replay stops before such a call, because no backend defines
        its result. The finding names the same ranks as the dumps do in `ddp-doctor logs`.
    Why: The recorded calls hang on any network or GPU: a rank calls its groups in a different order, skips a call, or
        stalled or exited earlier. With mismatched calls, NCCL hangs or returns wrong numbers, and gloo aborts.
    Remedy: Look for the reason that this rank's calls differ: a condition on the rank or on data, or a loop that ends
        early. If its calls end too early, find out where it stalled: `ddp-doctor attach`, its stack, its last output.
    See: docs/how-to/read-the-output-of-a-failed-job.md
    """
    replayed = _replayed(recording)
    if replayed is None or not (replayed.differing or replayed.hangs_as_the_job):
        return
    job, blamed, says = replayed.job, replayed.job.blamed, replayed.job.says
    sides = grouped((called, rank) for rank, called in replayed.differing.items())
    does, cure = "made mismatched calls", "the condition or the order that makes these calls differ"
    if sides:
        most = max(sides.values(), key=len)
        called = ", but ".join(f"{shape} on {rank_list(ranks)}" for shape, ranks in sides.items())
        happens = f"call {replayed.number} is {called}"
        if set(blamed) & {*most} or not set(blamed) <= replayed.differing.keys():  # from another hang in the same job
            blamed = ()
    else:
        happens = f"the replay hangs at the same place as the job: {replayed.where(replayed.waits)}"
        if blamed and replayed.waits.keys().isdisjoint(blamed):
            does, cure = (
                "never entered the collective",
                "its position in its stack or last output, and a condition on the rank",
            )
            says += " The recorders do not show whether it skipped the call or stalled in its own code."
    who = f"{capital(rank_list(blamed))} {does}; " if blamed else ""
    again = f"ddp-doctor run --collectives-of {shlex.quote(job.path)} --only {JOB_COLLECTIVES}"
    yield finding(
        [rank_culprit(recording, rank) for rank in blamed],
        capital(who + happens),
        replayed.evidence,
        in_code(
            f"Look for {cure}",
            f"{again} --nproc-per-node {len(job.ranks)} --reproducer reproducer.py   # a script for a bug report",
        ),
        confidence=job.confidence,
        detail=f"By {job.source}: {says}" if says else "",
    )


@rule("DD652", "job-collectives-run-through", Consequence.KNOWN, JobCollectivesFact)
def run_through(recording: Recording) -> Iterator[Draft]:
    """All collectives of the job complete on these machines.

    Finds: Reported if, with ``--collectives-of``, all calls of all ranks completed.
    Why: If the job hung, the order, sizes or groups of its recorded collectives were not the cause. The cause is the
        code between them, or a rank, a GPU or a link of that job.
    Remedy: Run `ddp-doctor logs` to see which rank waited for which, and `ddp-doctor run` to test the machines of the
        job.
    See: docs/how-to/read-the-output-of-a-failed-job.md
    """
    replayed = _replayed(recording)
    if replayed is None or replayed.stops != {""}:
        return
    job, facts = replayed.job, replayed.facts.values()
    groups = len({call.group for calls in job.ranks for call in calls})
    title = (
        f"The job's {job.count} collectives of {groups} group{'s' * (groups != 1)} finished"
        f" in {max(fact.seconds for fact in facts):.2g} s; a rank sent at most"
        f" {max(fact.moved_bytes for fact in facts):,} bytes"
    )
    detail = ""
    if replayed.waited:
        in_part = "in the replay, the calls that ran completed"
        whole = "not by the order, sizes or groups of these calls: here all met"
        detail = f"In the job, {replayed.where(replayed.waited)}; {in_part if job.unknown or job.left_out else whole}."
    cut = max(fact.largest_bytes or 0 for fact in facts)
    if cut:
        detail += f" Tensors larger than {cut >> 10} KiB were cut to that."
    yield proved(NOBODY, title, replayed.evidence, detail=detail.strip())


@rule("DD653", "replay-hangs-elsewhere", Consequence.HANGS, JobCollectivesFact)
def hangs_elsewhere(recording: Recording) -> Iterator[Draft]:
    """The replay hangs, but at a different place than the job.

    Finds: Reports ranks of the replay that hang in other collectives than the job's ranks in the dumps, or at a call
        that the job completed.
    Why: Either the order of the calls makes them hang, and the job avoided this by chance, or a link of these machines
        cannot carry them. The replay cannot show which is true, so no rank is named.
    Remedy: First run the standard checks, `ddp-doctor run`, on these machines. Then check the order of the groups.
    See: docs/explanation/hangs.md
    """
    replayed = _replayed(recording)
    if replayed is not None and replayed.hangs and not replayed.hangs_as_the_job:
        title = f"The replay hangs, although the job did not hang: in the replay, {replayed.where(replayed.waits)}"
        if replayed.waited:
            title = (
                f"The replay and the job hang in different collectives: in the replay, {replayed.where(replayed.waits)}"
            )
            title += f"; in the job, {replayed.where(replayed.waited)}"
        yield likely(NOBODY, title, replayed.evidence)


CHECK = Check(
    id=JOB_COLLECTIVES,
    title="A job's collectives, run again",
    where=Where.RANK,
    probe=probe,
    facts=(JobCollectivesFact,),
    rules=(hangs, run_through, hangs_elsewhere),
    min_ranks=2,
    cost_s=10.0,
    deadline_s=60.0,
    needs_job=True,
)
