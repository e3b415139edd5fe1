"""The diagnosis of running jobs, its verdict in one sentence, and the ranks of the report."""

from collections.abc import Sequence

from ddp_doctor.engine.diagnose import Diagnosis
from ddp_doctor.features.jobs.attach import AttachReport, LiveRank
from ddp_doctor.features.jobs.causes import live
from ddp_doctor.features.jobs.causes.judged import Judged
from ddp_doctor.features.jobs.diagnosis import JobDiagnosis, common, diagnosis_of, with_causes
from ddp_doctor.features.jobs.text import call_name, names, says
from ddp_doctor.features.jobs.views.live import live_jobs, unreached
from ddp_doctor.model.choices import Severity, Verdict
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import JobFacts, Report
from ddp_doctor.wording.findings import counted as in_number


def diagnose(recording: Recording) -> JobDiagnosis:
    """Return the causes that hold up the jobs, and all other findings."""
    return diagnosis_of(recording, live.judged)


def complete(report: Report, recording: Recording, diagnosis: JobDiagnosis) -> AttachReport:
    """Return the report with the causes, the facts about the jobs and the activity of each rank."""
    ranks = _live_ranks(recording, diagnosis.causes)
    return AttachReport(**with_causes(report, diagnosis), facts=_live_facts(recording), ranks=ranks)  # type: ignore[arg-type]


def summary(recording: Recording, verdict: Verdict, diagnosis: Diagnosis) -> str:
    """Return the verdict on running jobs in one sentence, without its period."""
    return f"{_of_live(recording, verdict, diagnosis.findings)}{_not_seen(recording, verdict)}"


def _live_facts(recording: Recording) -> JobFacts:
    jobs = [host for job in live_jobs(recording) for host in job.hosts]
    return JobFacts(
        launcher=common(job.launcher for job in jobs),
        torch=common(job.torch_version for job in jobs),
        backend=common(job.backend for job in jobs),
        ranks=sum(job.world_size for job in live_jobs(recording)),
        nodes=tuple(dict.fromkeys(job.host for job in jobs)),
    )


def _live_ranks(recording: Recording, causes: Sequence[Judged]) -> tuple[LiveRank, ...]:
    blamed = {(judged.job, culprit.rank, culprit.name) for judged in causes for culprit in judged.culprits}
    return tuple(
        LiveRank(
            job=job.name,
            rank=rank.rank,
            is_numbered=rank.is_numbered,
            node=rank.fact.host,
            pid=rank.fact.pid,
            gpu=rank.fact.gpu,
            gpu_use=rank.fact.gpu_use,
            state=rank.fact.looks[-1].state if rank.fact.looks else None,
            does=says(rank),
            collective=call_name(rank) if rank.kind == "collective" else None,
            line=rank.line or None,
            moves=rank.moves,
            blamed=not blamed.isdisjoint({(job.name, rank.rank, None), (job.name, None, names([rank]))}),
        )
        for job in live_jobs(recording)
        for rank in job.ranks
    )


def _of_live(recording: Recording, verdict: Verdict, findings: Sequence[Finding]) -> str:
    others = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    certain = [finding for finding in findings if finding.is_certain_error]
    doubtful = [finding for finding in findings if finding.severity is not Severity.INFO]
    for word, some in (("Stuck", certain), ("Cannot tell", doubtful), ("Running", findings)):
        if some:
            return f"{word}: {some[0].title.rstrip('.')}{others}"
    jobs = live_jobs(recording)
    ranks = [rank for job in jobs for rank in job.ranks]
    if jobs and all(job.has_ended for job in jobs):
        return f"Ended: {in_number(len(ranks), 'rank')} exited with code 0 during the observation"
    moving = sum(rank.moves is True for rank in ranks)
    of_jobs = f" of {len(jobs)} jobs" if len(jobs) > 1 else ""
    watched_s = max((job.watched_s for job in jobs), default=0.0)
    word = "Cannot tell" if verdict is Verdict.UNSURE else "Running"
    return f"{word}: {moving} of {in_number(len(ranks), 'rank')}{of_jobs} made progress in {watched_s:.0f} s"


def _not_seen(recording: Recording, verdict: Verdict) -> str:
    hosts = unreached(recording) if verdict is Verdict.UNSURE else {}
    if len(hosts) > 1:
        return f"; {len(hosts)} hosts could not be read, {next(iter(hosts))} the first"
    return "".join(f"; {host} could not be read: {why.rstrip('.')}" for host, why in hosts.items())
