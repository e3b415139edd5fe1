"""From a recording to findings: every rule, pure, both live and on replay."""

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter

from ddp_doctor.checks import checks_of
from ddp_doctor.engine.memory import no_garbage_collection
from ddp_doctor.engine.prove.proofs import with_proofs
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Command, Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import NOT_SELECTED, SKIPPED_BY_NAME, Recording
from ddp_doctor.model.rule import Rule
from ddp_doctor.remedies.kinds import completed

#: The checks that a command judges. ``env`` looks at more, to know which names and versions are here.
JUDGED: Mapping[Command, tuple[str, ...]] = {Command.ENV: ("env_vars", "nccl")}


@dataclass(frozen=True)
class Diagnosis:
    """The findings, worst first, and the rules that failed themselves (code and traceback).

    ``ignored`` are the codes of rules that the user left out and that would have found something.
    """

    findings: tuple[Finding, ...]
    failures: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()


def all_rules() -> list[Rule]:
    """Every rule of the doctor, by code."""
    return sorted([*_rules_of_machines(), *_rules_of_jobs()], key=lambda rule: rule.code)


def _rules_of_machines(command: Command = Command.RUN) -> list[Rule]:
    judged = JUDGED.get(command)
    checks = [check for check in checks_of(command) if judged is None or check.id in judged]
    rules = [rule for check in checks for rule in check.rules]
    if command.is_of_one_node:
        return rules
    from ddp_doctor.engine.hang.rules import TRIAL_RULES  # no other command has trials

    return [*rules, *TRIAL_RULES]


def _rules_of_jobs() -> Sequence[Rule]:
    from ddp_doctor.engine.causes.rules import JOB_RULES  # a tenth of what a prolog takes

    return JOB_RULES


def is_judged(recording: Recording, check_id: str) -> bool:
    """Whether the command that made the recording judges this check."""
    judged = JUDGED.get(recording.command)
    return judged is None or check_id in judged


@cache
def _rules_for(command: Command, with_machines: bool) -> list[Rule]:
    of_jobs = _rules_of_jobs() if command.judges_jobs else ()
    of_machines = _rules_of_machines(command) if with_machines else ()
    return _causes_first(sorted([*of_machines, *of_jobs], key=lambda rule: rule.code))


def _causes_first(rules: Iterable[Rule]) -> list[Rule]:
    """The rules in an order in which each comes after those that explain its findings."""
    by_code = {rule.code: rule for rule in rules}
    causes = {code: [cause for cause in rule.explained_by if cause in by_code] for code, rule in by_code.items()}
    return [by_code[code] for code in TopologicalSorter(causes).static_order()]


def diagnose(recording: Recording, rules: Iterable[Rule] | None = None) -> Diagnosis:
    """Apply all rules that the recording's command calls for (or those given), causes before what they explain."""
    had_ranks = recording.command.has_ranks and recording.world is not None
    findings: list[Finding] = []
    failures: list[tuple[str, str]] = []
    ignored: list[str] = []
    silent = _of_nobodys_choice(recording)
    called_for = _rules_for(recording.command, _tells_of_machines(recording)) if rules is None else _causes_first(rules)
    with no_garbage_collection():
        for rule in called_for:
            if rule.code in silent:
                continue
            try:
                found = rule.apply(recording, findings)
                if not rule.code.startswith(recording.options.ignore):
                    findings += [completed(finding, had_ranks=had_ranks) for finding in found]
                elif found:
                    ignored.append(rule.code)
            except Exception:  # noqa: BLE001 - one broken rule must not silence the others
                failures.append((rule.code, traceback.format_exc(limit=-3)))
    worst_first = _worst_first(with_proofs(findings, recording.experiments))
    return Diagnosis(worst_first, tuple(failures), tuple(ignored))


def checks_for(recording: Recording) -> tuple[Check, ...]:
    """The checks that may have something to judge in it."""
    return checks_of(recording.command) if _tells_of_machines(recording) else ()


def _tells_of_machines(recording: Recording) -> bool:
    """Whether checks may find something: always but for a job's output alone, which holds no recording of a machine."""
    return not recording.command.judges_jobs or any(
        reading.check not in ("logs", "attach") for reading in recording.readings
    )


def _of_nobodys_choice(recording: Recording) -> frozenset[str]:
    """The rules that judge nothing: of checks that nobody selected, and that looked because they decide the world."""
    unselected = {each.check for each in recording.not_run if each.reason in (NOT_SELECTED, SKIPPED_BY_NAME)}
    deciding = [check for check in checks_for(recording) if check.id in unselected and check.decides_world]
    return frozenset(rule.code for check in deciding for rule in check.rules if rule not in check.decides_world)


def _worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    order = [Severity.ERROR, Severity.WARNING, Severity.INFO]
    return tuple(sorted(findings, key=lambda finding: (order.index(finding.severity), finding.code)))
