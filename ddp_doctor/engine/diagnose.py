"""Apply the rules to a recording, live or on replay, without side effects."""

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter

from ddp_doctor.checks import checks_of, every_check
from ddp_doctor.engine.memory import no_garbage_collection
from ddp_doctor.engine.prove.proofs import with_proofs
from ddp_doctor.facts.collectives import AllReduceFact
from ddp_doctor.features import features_in, has_model, recorded_by
from ddp_doctor.model.check import ENV_VARS, NCCL, Check
from ddp_doctor.model.choices import Command, Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import NOT_SELECTED, SKIPPED_BY_NAME, Recording
from ddp_doctor.model.rule import Described, Rule
from ddp_doctor.remedies.kinds import completed


@dataclass(frozen=True)
class Diagnosis:
    """The findings, worst first, and the rules that crashed (code and traceback).

    ``ignored`` lists the codes of rules that the user ignored and that would have reported something.
    """

    findings: tuple[Finding, ...]
    failures: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()


def all_rules() -> list[Described]:
    """Return all rules, sorted by code."""
    of_run = _rules_for(Command.RUN, has_model=False)
    of_checks = {rule for check in every_check() for rule in check.rules}.union(of_run)
    of_features = (rule for feature in features_in(None) for rule in feature.rules())
    return sorted([*of_checks, *of_features], key=lambda rule: rule.code)


@cache
def _rules_for(command: Command, *, has_model: bool) -> list[Rule]:
    """Return the rules of a command's checks and trials, each after the rules that explain its findings."""
    checks = checks_of(command, has_model=has_model)
    rules = [rule for check in checks if is_judged(command, check.id) for rule in check.rules]
    if any(check.where.needs_ranks for check in checks):
        from ddp_doctor.engine.hang.rules import TRIAL_RULES  # only commands with ranks have trials

        rules += TRIAL_RULES
    return _causes_first(sorted(rules, key=lambda rule: rule.code))


def _rules_of(recording: Recording) -> list[Rule]:
    return _rules_for(recording.command, has_model=has_model(recording))


def _causes_first(rules: Iterable[Rule]) -> list[Rule]:
    by_code = {rule.code: rule for rule in rules}
    causes = {code: [cause for cause in rule.explained_by if cause in by_code] for code, rule in by_code.items()}
    return [by_code[code] for code in TopologicalSorter(causes).static_order()]


def is_judged(command: Command, check_id: str) -> bool:
    """Return True if a command applies the rules of this check.

    ``env`` also runs checks only to learn names and versions, and a feature may run checks of the core for their facts.
    """
    if (feature := recorded_by(command)) is not None:
        return all(name.rpartition(".")[2] != check_id for name in feature.reads)
    return command is not Command.ENV or check_id in (ENV_VARS, NCCL)


def checks_for(recording: Recording) -> tuple[Check, ...]:
    """Return the checks that may have something to evaluate or measure in the recording."""
    feature = recorded_by(recording.command)
    if feature is not None and feature.has_all_reduces and not recording.of_kind(AllReduceFact.KIND):
        return feature.checks
    return checks_of(recording.command, has_model=has_model(recording))


def diagnose(recording: Recording, rules: Iterable[Rule] | None = None) -> Diagnosis:
    """Apply the rules of the recording's command, or the given ones; causes come before the findings they explain."""
    feature = recorded_by(recording.command) if rules is None else None
    if feature is not None and feature.diagnose is not None:
        diagnosis: Diagnosis = feature.diagnose(recording)
        return diagnosis
    had_ranks = recording.command.has_ranks and recording.world is not None
    findings: list[Finding] = []
    failures: list[tuple[str, str]] = []
    ignored: list[str] = []
    silent = _of_nobodys_choice(recording)
    with no_garbage_collection():
        for rule in _rules_of(recording) if rules is None else _causes_first(rules):
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
    return Diagnosis(worst_first(with_proofs(findings, recording.experiments)), tuple(failures), tuple(ignored))


def is_of_cause(code: str) -> bool:
    """Return True if the rule finds causes of failed jobs. Codes of NCCL fallbacks have a 2 instead."""
    return code.startswith(("DDJ1", "DDJ3"))


def _of_nobodys_choice(recording: Recording) -> frozenset[str]:
    """Return the codes of rules to skip: their checks were not selected and ran only because they decide the world."""
    unselected = {each.check for each in recording.not_run if each.reason in (NOT_SELECTED, SKIPPED_BY_NAME)}
    deciding = [check for check in checks_for(recording) if check.id in unselected and check.decides_world]
    return frozenset(rule.code for check in deciding for rule in check.rules if rule not in check.decides_world)


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort by severity, then by code. Errors that are only possible come after the other errors."""
    order = [Severity.ERROR, Severity.WARNING, Severity.INFO]
    return tuple(sorted(findings, key=lambda each: (order.index(each.severity), not each.is_certain_error, each.code)))
