"""The diagnosis of an ended job, its verdict in one sentence, and the facts that its output shows."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache

from ddp_doctor.engine.diagnose import is_of_cause, worst_first
from ddp_doctor.facts.collectives import AllReduceFact
from ddp_doctor.facts.given import FlightDumpFact
from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.features.jobs.causes import wait_graph
from ddp_doctor.features.jobs.causes.findings import JOB_RULES, finding_of
from ddp_doctor.features.jobs.causes.judge import cause_in, causes
from ddp_doctor.features.jobs.diagnosis import JobDiagnosis, common, diagnosis_of, with_causes
from ddp_doctor.features.jobs.facts import JobLogFact
from ddp_doctor.features.jobs.reading.assemble import fact_of_text
from ddp_doctor.features.jobs.table import SIGNS
from ddp_doctor.features.jobs.table.kinds import JobCause
from ddp_doctor.features.jobs.table.signs import Sign
from ddp_doctor.features.jobs.table.unproven import NOT_FAILED, RECOVERED
from ddp_doctor.model.choices import Confidence, Severity, Verdict
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.known_error import KnownError, Page
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import JobFacts, LogsReport, Report
from ddp_doctor.model.rule import Described
from ddp_doctor.settings.table import variables
from ddp_doctor.views.node_traits import counted

waits = wait_graph.judged


def rules() -> tuple[Described, ...]:
    """Return the rules on causes, and on anything else that the output shows."""
    return JOB_RULES


def diagnose(recording: Recording) -> JobDiagnosis:
    """Return the causes of a failure and all other findings."""
    return diagnosis_of(recording, causes)


def complete(report: Report, recording: Recording, diagnosis: JobDiagnosis) -> LogsReport:
    """Return the report with the causes in time order and the facts about the job."""
    return LogsReport(**with_causes(report, diagnosis), facts=_facts(recording))  # type: ignore[arg-type]


def summary(recording: Recording, verdict: Verdict, diagnosis: JobDiagnosis) -> str:
    """Return the verdict on a job in one sentence, without its period."""
    findings = diagnosis.findings
    named = findings[: len(diagnosis.causes)]
    others = f" (and {len(named) - 1} more)" if len(named) > 1 else ""
    worst = next((finding for finding in named if finding.is_certain_error), None)
    if worst is not None:
        return f"Failed: {worst.title.rstrip('.')}{others}"
    if named and named[0].name in (*NOT_FAILED, RECOVERED):
        return named[0].title.rstrip(".")
    if named:
        title = re.sub("^[A-Z](?=[a-z ])", lambda letter: letter[0].lower(), named[0].title)  # not NCCL, P2P
        # A cause without a domain states what is known; any other cause is a guess.
        is_hedged = diagnosis.causes[0].cause.domain == "unknown" or " may " in title
        possibly = "" if is_hedged else "possibly "
        return f"Failed, cause not proven: {possibly}{title.rstrip('.')}{others}"
    worst_beside = [] if verdict is Verdict.HEALTHY else worst_first(findings)
    of_jobs = [finding for finding in worst_beside if is_of_cause(finding.code)]
    if of_jobs or verdict is Verdict.UNHEALTHY:  # from a recording next to the output, whose own job continued
        but = "No failure in the output, but in a recording" if of_jobs else "No failure, but"
        return f"{but}: {[*of_jobs, *worst_beside][0].title.rstrip('.')}"
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    noted = f", with {warnings} warning{'s' if warnings > 1 else ''}" if warnings else ""
    other = "other " if any(map(is_of_cause, diagnosis.ignored)) else ""
    return f"No {other}failure found in {_what_was_read(recording)}{noted}"


def _what_was_read(recording: Recording) -> str:
    files = [file for at in recording.facts(JobLogFact) for file in at.fact.files if file.lines or not file.unread]
    number = "1 file" if len(files) == 1 else f"{len(files)} files"
    return f"what was read of {number}" if any(file.unread for file in files) else number


def _facts(recording: Recording) -> JobFacts:
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
    hosts = (*(rank.host for rank in job.ranks), *(log.host for log in logs), *(sign.host for sign in job.signs))
    measured = [at.fact for at in recording.facts(AllReduceFact)]
    nvls = {log.nvls for log in logs} - {None}
    return JobFacts(
        launcher=job.launcher,
        torch=job.torch_version,
        backend=job.backend,
        nccl=next(releases, common(fact.nccl for fact in measured)),
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
        measured_by=common(fact.measured_by for fact in measured),
        gpus=common(counted(fact.gpu_names) for fact in measured),
    )


def _all(names: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted({name for several in names for name in several}))


def _kind(via: str) -> str:
    return "/".join(part.partition("(")[0] for part in via.split("/") if not part[:1].isdigit())


#: Some libraries print times without a year; here only their order counts.
_LEAP_YEAR = 2000


def named_cause(name: str, text: str, check: str) -> tuple[Finding, tuple[str, ...]] | None:
    """Return the finding on the cause that a process names, and the line that names it."""
    judged = cause_in(fact_of_text(name, text, _LEAP_YEAR))
    return None if judged is None else (finding_of(judged, check), tuple(line.text for line in judged.lines[:1]))


@cache
def errors() -> tuple[KnownError, ...]:
    """Return the texts in a job's output that have a known meaning."""
    return tuple(
        KnownError(
            sign.id,
            sign.words,
            sign.pattern,
            _page(sign, cause),
            cause.name if cause else "",
            cause.code if cause and sign.confidence is not Confidence.POSSIBLE else "",
            sign.run_code,
        )
        for sign, cause in SIGNS.values()
    )


def _page(sign: Sign, cause: JobCause | None) -> Page | None:
    if cause is None or sign.beside:
        return sign.page
    settings = {setting.name for remedy in cause.remedies for setting in remedy.settings} & {*variables()}
    return Page(cause.finds, (cause.code, *cause.found_by), cause.references[0], tuple(sorted(settings)))
