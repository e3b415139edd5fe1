"""The diagnosis of jobs by ``logs`` and ``attach``: findings on causes first, then on other facts in the output."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ddp_doctor.engine.diagnose import Diagnosis, checks_for, diagnose
from ddp_doctor.engine.memory import no_garbage_collection
from ddp_doctor.engine.verdict import measurements
from ddp_doctor.facts.given import RecordingFact
from ddp_doctor.features.jobs.causes import fallbacks
from ddp_doctor.features.jobs.causes.findings import finding_of
from ddp_doctor.features.jobs.causes.judged import Judged
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import CauseLine, JobCauseReport, Report
from ddp_doctor.model.rule import rules_in
from ddp_doctor.remedies.kinds import completed


@dataclass(frozen=True)
class JobDiagnosis(Diagnosis):
    """The diagnosis of jobs.

    ``causes`` are in the order of time; their findings come first, in the same order. ``beside`` are recordings that
    were given with the output, each evaluated as its own command does.
    """

    causes: tuple[Judged, ...] = ()
    beside: tuple[Recording, ...] = ()


def diagnosis_of(recording: Recording, causes: Callable[[Recording], Iterable[Judged]]) -> JobDiagnosis:
    """Return the findings on causes, then on problems that do not end a job, then on the recordings in this one."""
    options = recording.options
    beside = tuple(at.fact.recording.ignoring(options.ignore) for at in recording.facts(RecordingFact))
    with no_garbage_collection():
        named = tuple(causes(recording))
        kept = tuple(judged for judged in named if not judged.cause.code.startswith(options.ignore))
        found = [finding_of(judged, options.command) for judged in kept]
    others = [diagnose(recording, rules_in(fallbacks)), *map(diagnose, beside)]
    left_out = sorted({judged.cause.code for judged in named if judged not in kept})
    return JobDiagnosis(
        (
            *(completed(finding, had_ranks=False) for finding in found),
            *(finding for other in others for finding in other.findings),
        ),
        tuple(failure for other in others for failure in other.failures),
        tuple(dict.fromkeys([*left_out, *(code for other in others for code in other.ignored)])),
        kept,
        beside,
    )


def with_causes(report: Report, diagnosis: JobDiagnosis) -> dict[str, object]:
    """Return the fields of a report by name, with those that all reports on jobs have."""
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
        for judged in diagnosis.causes
    )
    measured = (each for beside in diagnosis.beside for each in measurements(beside, checks_for(beside)))
    return {**dict(report), "measurements": (*report.measurements, *measured), "causes": reports}


def common(values: Iterable[str | None]) -> str | None:
    """Return the value if all are equal, or None."""
    different = set(values)
    return different.pop() if len(different) == 1 else None
