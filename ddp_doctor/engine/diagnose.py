"""From a recording to findings: every rule, pure, live and on replay alike."""

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.hang.rules import TRIAL_RULES
from ddp_doctor.engine.memory import no_garbage_collection
from ddp_doctor.engine.prove.proofs import with_proofs
from ddp_doctor.engine.remedies import completed
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import Rule

#: The checks that a command judges. ``env`` looks at more, to know which names and versions are here.
JUDGED: Mapping[str, tuple[str, ...]] = {"env": ("env_vars", "nccl")}


@dataclass(frozen=True)
class Diagnosis:
    """The findings, worst first, and the rules that failed themselves (code and traceback)."""

    findings: tuple[Finding, ...]
    failures: tuple[tuple[str, str], ...] = ()


def all_rules() -> list[Rule]:
    """Every rule of the doctor, by code."""
    rules = [rule for check in CHECKS for rule in check.rules]
    return sorted([*rules, *TRIAL_RULES], key=lambda rule: rule.code)


def is_judged(recording: Recording, check_id: str) -> bool:
    """Whether the command that made the recording judges this check."""
    judged = JUDGED.get(recording.options.command)
    return judged is None or check_id in judged


def _rules_for(recording: Recording) -> list[Rule]:
    if recording.options.command not in JUDGED:
        return all_rules()
    return [rule for check in CHECKS if is_judged(recording, check.id) for rule in check.rules]


def diagnose(recording: Recording, rules: Iterable[Rule] | None = None) -> Diagnosis:
    """Apply all rules that the recording's command calls for (or those given)."""
    had_ranks = recording.options.command == "run" and recording.world is not None
    findings: list[Finding] = []
    failures: list[tuple[str, str]] = []
    with no_garbage_collection():
        for rule in _rules_for(recording) if rules is None else rules:
            try:
                findings += [completed(one, had_ranks=had_ranks) for one in rule.apply(recording)]
            except Exception:  # noqa: BLE001 - one broken rule must not silence the others
                failures.append((rule.code, traceback.format_exc(limit=-3)))
    return Diagnosis(_worst_first(with_proofs(findings, recording.experiments)), tuple(failures))


def _worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    order = [Severity.ERROR, Severity.WARNING, Severity.INFO]
    return tuple(sorted(findings, key=lambda finding: (order.index(finding.severity), finding.code)))
