"""The parts of a report on a job in addition to its findings: the verdict line, the causes, the facts."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from ddp_doctor.engine.causes.judged import Judged
from ddp_doctor.engine.diagnose import Diagnosis, is_of_cause, worst_first
from ddp_doctor.facts.collectives import AllReduceFact
from ddp_doctor.facts.flight_dump import FlightDumpFact
from ddp_doctor.facts.job_log import JobLogFact
from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.knowledge.job_causes.unproven import NOT_FAILED, RECOVERED
from ddp_doctor.model.choices import Command, Severity, Verdict
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import AttachReport, CauseLine, JobCauseReport, JobFacts, LiveRank, LogsReport, Report
from ddp_doctor.views.live_jobs import live_jobs, unreached
from ddp_doctor.views.node_traits import counted
from ddp_doctor.wording.findings import counted as in_number
from ddp_doctor.wording.live_ranks import call_name, names, says


def with_causes(report: Report, recording: Recording, causes: Sequence[Judged]) -> LogsReport:
    """The report of a job: its causes in the order of time, and what is known of the job."""
    reports = tuple(
        JobCauseReport(
            name=judged.cause.name,
            confidence=judged.confidence,
            domain=judged.cause.domain,
            restart=judged.cause.restart,
            lines=tuple(CauseLine(**line.model_dump()) for line in judged.lines),
            next_check=judged.next_command,
            culprits=judged.culprits,
        )
        for judged in causes
    )
    fields = {**dict(report), "causes": reports}
    if recording.command is Command.ATTACH:
        return AttachReport(**fields, facts=_live_facts(recording), ranks=_live_ranks(recording, causes))
    return LogsReport(**fields, facts=_facts(recording))


def _live_facts(recording: Recording) -> JobFacts:
    """What is known of the jobs that run; of several only what they have in common."""
    jobs = [host for job in live_jobs(recording) for host in job.hosts]
    return JobFacts(
        launcher=_common(job.launcher for job in jobs),
        torch=_common(job.torch_version for job in jobs),
        backend=_common(job.backend for job in jobs),
        ranks=sum(job.world_size for job in live_jobs(recording)),
        nodes=tuple(dict.fromkeys(job.host for job in jobs)),
    )


def _common(values: Iterable[str | None]) -> str | None:
    different = set(values)
    return different.pop() if len(different) == 1 else None


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


def summary(recording: Recording, verdict: Verdict, diagnosis: Diagnosis) -> str:
    """Return the verdict on a job in one sentence, without its period."""
    findings = diagnosis.findings
    if recording.command is Command.ATTACH:
        return f"{_of_live(recording, verdict, findings)}{_not_seen(recording, verdict)}"
    named = findings[: len(diagnosis.causes)]
    others = f" (and {len(named) - 1} more)" if len(named) > 1 else ""
    worst = next((finding for finding in named if finding.is_certain_error), None)
    if worst is not None:
        return f"Failed: {worst.title.rstrip('.')}{others}"
    if named and named[0].name in (*NOT_FAILED, RECOVERED):
        return named[0].title.rstrip(".")
    if named:
        title = re.sub("^[A-Z](?=[a-z ])", lambda letter: letter[0].lower(), named[0].title)  # not of NCCL, P2P
        # A cause without a domain says what is known; any other is a guess.
        is_hedged = diagnosis.causes[0].cause.domain == "unknown" or " may " in title
        possibly = "" if is_hedged else "possibly "
        return f"Failed, cause not proven: {possibly}{title.rstrip('.')}{others}"
    worst_beside = [] if verdict is Verdict.HEALTHY else worst_first(findings)
    of_jobs = [finding for finding in worst_beside if is_of_cause(finding.code)]
    if of_jobs or verdict is Verdict.UNHEALTHY:  # by a recording beside the output; its own job went on
        but = "No failure in the output, but in a recording" if of_jobs else "No failure, but"
        return f"{but}: {[*of_jobs, *worst_beside][0].title.rstrip('.')}"
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    noted = f", with {warnings} warning{'s' if warnings > 1 else ''}" if warnings else ""
    other = "other " if any(map(is_of_cause, diagnosis.ignored)) else ""
    return f"No {other}failure found in {_what_was_read(recording)}{noted}"


def _of_live(recording: Recording, verdict: Verdict, findings: Sequence[Finding]) -> str:
    """The verdict on jobs that run."""
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
    """Return which hosts an unsure verdict lacks."""
    hosts = unreached(recording) if verdict is Verdict.UNSURE else {}
    if len(hosts) > 1:
        return f"; {len(hosts)} hosts could not be read, {next(iter(hosts))} the first"
    return "".join(f"; {host} could not be read: {why.rstrip('.')}" for host, why in hosts.items())


def _what_was_read(recording: Recording) -> str:
    files = [file for at in recording.facts(JobLogFact) for file in at.fact.files if file.lines or not file.unread]
    number = "1 file" if len(files) == 1 else f"{len(files)} files"
    return f"what was read of {number}" if any(file.unread for file in files) else number


def _facts(recording: Recording) -> JobFacts:
    """What the output says of the job."""
    job = recording.first(JobLogFact) or JobLogFact(files=())
    logs = [at.fact for at in recording.facts(NcclTransportFact)]
    dumps = [at.fact for at in recording.facts(FlightDumpFact)]
    sizes = {size for log in logs for size in log.comm_sizes} | {init.ranks for log in logs for init in log.inits}
    releases = (f"{log.version}+cuda{log.cuda}" if log.cuda else log.version for log in logs if log.version)
    pairs = {(t.from_rank, t.to_rank, _kind(t.via)) for log in logs for t in log.transports}
    ranks = {rank.rank for rank in job.ranks} | {dump.rank for dump in dumps}
    over_net = [network for log in logs for t in log.transports if (network := t.network) is not None]
    ranks |= {rank for dump in dumps for group in dump.groups for rank in group.ranks}
    worlds = [job.world_size, *(dump.world_size for dump in dumps), max(sizes, default=None), len(ranks) or None]
    hosts = (*(rank.host for rank in job.ranks), *(log.host for log in logs))
    measured = [at.fact for at in recording.facts(AllReduceFact)]
    nvls = {log.nvls for log in logs} - {None}
    return JobFacts(
        launcher=job.launcher,
        torch=job.torch_version,
        backend=job.backend,
        nccl=next(releases, _common(fact.nccl for fact in measured)),
        driver_cuda=next((log.driver_cuda for log in logs if log.driver_cuda), None),
        ranks=next((size for size in worlds if size), None),
        nodes=tuple(dict.fromkeys(host for host in hosts if host)),
        communicators=tuple(sorted(sizes)),
        communicators_begun=sum(log.inits_begun for log in logs),
        communicators_complete=sum(log.inits_complete for log in logs),
        rings=max((log.channels for log in logs if log.channels), default=None),
        interfaces=_all(log.interfaces for log in logs),
        nics=_all([hca.name for hca in log.hcas] for log in logs),
        plugins=_all(log.plugins for log in logs),
        network=_all([[log.network for log in logs if log.network], [name for name, _, _ in over_net]]),
        transports=dict(sorted(Counter(kind for *_, kind in pairs).items())),
        gpudirect=any(gpudirect for _, _, gpudirect in over_net) if over_net else None,
        nvls=any(nvls) if nvls else None,
        measured_by=_common(fact.measured_by for fact in measured),
        gpus=_common(counted(fact.gpu_names) for fact in measured),
    )


def _all(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for several in names for name in several}))


def _kind(via: str) -> str:
    """``P2P/CUMEM``, ``NET/IB/GDRDMA``: without the numbers of devices and proxies."""
    return "/".join(part.partition("(")[0] for part in via.split("/") if not part[:1].isdigit())
