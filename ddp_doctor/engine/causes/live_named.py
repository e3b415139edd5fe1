"""What causes of jobs that run have in common: who is named, with pid and host, and a line for what each rank does."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ddp_doctor.engine.causes.judged import Judged
from ddp_doctor.facts.job_log import LogLine
from ddp_doctor.knowledge.job_causes import JOB_CAUSES
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Culprit
from ddp_doctor.views.live_jobs import LiveJob
from ddp_doctor.views.live_ranks import UNABLE, Doing
from ddp_doctor.wording.live_ranks import busy_text, says, verb, waits_text
from ddp_doctor.wording.ranks import rank_list, short

CAUSES = {cause.name: cause for cause in JOB_CAUSES}
#: Ranks that are named with their processes.
_EACH = 2
_MOST_LINES = 8
_MOST_FRAMES = 12


class Named:
    """The ranks of a job, and how causes name them."""

    def __init__(self, job: LiveJob) -> None:
        self.job, self.ranks = job, job.ranks
        self.able = [one for one in job.ranks if one.kind not in UNABLE]
        self.in_collective = [one for one in self.able if one.waits]
        self.for_gpu = [one for one in self.able if one.kind == "gpu" and not one.moves]
        self.waiting = [*self.in_collective, *self.for_gpu]

    def found(
        self, name: str, confidence: Confidence, who: Sequence[Doing], culprits: Sequence[Doing], **values: str
    ) -> Judged:
        """A cause, with the lines of all ranks, ``who`` first."""
        rest = [one for one in self.ranks if one not in who]
        waiting = [one for one in self.waiting if one not in who or len(who) == len(self.ranks)]
        return Judged(
            CAUSES[name],
            confidence,
            tuple(self.lines([*who, *rest])),
            self.culprits([one.rank for one in culprits]),
            self.who([one.rank for one in who]),
            f"{waits_text(waiting)} {busy_text(self.waiting)}".strip(),
            {"is": verb(who, "are"), "hangs": verb(who, "hang"), **values},
            pid=culprits[0].fact.pid if len(culprits) == 1 else None,
        )

    def who(self, ranks: Sequence[int]) -> str:
        """``rank 3 (pid 4711)``, ``ranks 0-2``, ``all 4 ranks``."""
        pids = {one.rank: f"pid {one.fact.pid}{self.on(one.rank)}" for one in self.ranks}
        if len(ranks) > 1 and len(set(ranks)) == len(self.ranks) == self.job.world_size:
            return "both ranks" if len(ranks) == 2 else f"all {len(ranks)} ranks"
        if len(ranks) <= _EACH and all(rank in pids for rank in ranks):
            return " and ".join(f"rank {rank} ({pids[rank]})" for rank in ranks)
        return rank_list(ranks)

    def culprits(self, ranks: Sequence[int]) -> tuple[Culprit, ...]:
        """These ranks, as those to blame."""
        gpus = {one.rank: one.fact.gpu for one in self.ranks}
        return tuple(Culprit(kind="rank", rank=rank, node=self.node(rank), gpu=gpus.get(rank)) for rank in ranks)

    def node(self, rank: int) -> str | None:
        """The host of a rank, also of one that is missing there; None where that is not known."""
        hosts = {one.rank: one.fact.host for one in self.ranks}
        return hosts.get(rank) or self.job.missing.get(rank)

    def on(self, rank: int) -> str:
        """Where a rank is, of a job on several hosts."""
        return f" on {self.node(rank)}" if len(self.job.hosts) > 1 else ""

    def lines(self, ranks: Sequence[Doing]) -> Iterator[LogLine]:
        """One for those that do the same on one host."""
        alike: dict[tuple[str, str], list[Doing]] = defaultdict(list)
        for one in ranks:
            alike[one.fact.host, says(one)].append(one)
        for (host, text), several in list(alike.items())[:_MOST_LINES]:
            if len(several) == 1:
                yield self.line(several[0], text)
            else:
                numbers = [one.rank for one in several]
                yield LogLine(file=f"{rank_list(numbers)} on {host}", line=0, text=text)

    def stands(self, one: Doing) -> Iterator[LogLine]:
        """Where a rank stands, whole: its Python stack, and what the kernel says that it waits for."""
        frames = next((look.frames for look in reversed(one.fact.looks) if look.frames), ())
        if frames:
            cut = "… > " * (len(frames) > _MOST_FRAMES)
            yield self.line(one, f"its stack: {cut}{' > '.join(map(short, frames[-_MOST_FRAMES:]))}")
        if one.fact.kernel:
            where = one.fact.looks[-1].wait_channel
            yield self.line(one, f"the kernel: it waits in {one.fact.kernel}{f' ({where})' if where else ''}")

    def line(self, one: Doing, text: str) -> LogLine:
        """What one rank does, as a line of its own."""
        return LogLine(file=f"rank {one.rank} (pid {one.fact.pid} on {one.fact.host})", line=0, text=text)
