"""Which remedies of a diagnosis are tried, in which order, and why the others are not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.model.choices import Level, Severity
from ddp_doctor.model.finding import Finding, Remedy, Reproducer, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.settings import trials


@dataclass(frozen=True)
class Candidate:
    """A remedy made of settings, and the test that shows its fault; with ``reason`` it cannot be tried."""

    code: str
    settings: tuple[Setting, ...]
    reproducer: Reproducer
    reason: str | None = None


def candidates(
    recording: Recording, findings: Sequence[Finding], env: Mapping[str, str]
) -> Iterator[list[Candidate]]:
    """The remedies of each finding that says how it shows, those of the worst finding first.

    What is only worth knowing is tried at level thorough alone: it costs time on healthy machines.
    """
    world = recording.world
    least = Severity.INFO if recording.options.level is Level.THOROUGH else Severity.WARNING
    for finding in findings:
        if world is None or finding.reproduced_by is None or not finding.severity.at_least(least):
            continue
        made = [remedy for remedy in finding.remedies if remedy.settings and remedy.scope == "job"]
        if made:
            yield [_candidate(finding, remedy, finding.reproduced_by, world.backend, env) for remedy in made]


def _candidate(
    finding: Finding, remedy: Remedy, reproducer: Reproducer, backend: str, env: Mapping[str, str]
) -> Candidate:
    reason = trials.why_not((setting.name for setting in remedy.settings), backend)
    return Candidate(finding.code, remedy.settings, reproducer, reason or _from_a_file(remedy.settings, env))


def _from_a_file(settings: Sequence[Setting], env: Mapping[str, str]) -> str | None:
    """What a file sets can be overruled by the environment, but not taken away."""
    for setting in settings:
        if setting.action == "unset" and setting.node_rank is None and setting.name not in env:
            return (
                f"{setting.name} does not come from the environment of the ranks, and a trial changes no file"
            )
    return None
