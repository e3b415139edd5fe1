"""``ddp-doctor lint``: files in, report out. It does not import launchers and checks, which takes longer than linting a
hundred files."""

import os
from collections.abc import Sequence
from datetime import datetime, timezone

from ddp_doctor.cli.error_handler import print_to_stderr
from ddp_doctor.cli.given import require_kind, rule_codes
from ddp_doctor.cli.outputs import LintResults, Outputs
from ddp_doctor.engine.memory import no_garbage_collection
from ddp_doctor.lint.files import read_script, script_paths, shown_path
from ddp_doctor.lint.linting import MOST_BYTES, chosen, lint_bytes
from ddp_doctor.lint.render import text
from ddp_doctor.lint.report import Linted, Unread, lint_report
from ddp_doctor.lint.rule import LintRule
from ddp_doctor.lint.rules import RULES
from ddp_doctor.model.choices import ExitCode, FailOn, OutputFormat, UsageError
from ddp_doctor.parse.file_kinds import PYTHON
from ddp_doctor.render import finding_lines
from ddp_doctor.render.screen import console


def lint(
    given: Sequence[str],
    outputs: Outputs,
    *,
    quiet: bool = False,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fail_on: FailOn = FailOn.ERROR,
) -> int:
    """Judge the files; the exit code. Raises UsageError."""
    started_at = datetime.now(timezone.utc)
    rules = _rules(select, ignore)
    paths = list(script_paths(given))
    if not paths:
        raise UsageError(f"there is no Python file in {', '.join(given)}")
    with no_garbage_collection():  # of a hundred trees
        linted = [_lint_file(path, rules) for path in paths]
    report = lint_report(linted, fail_on, started_at)
    problems = outputs.write(LintResults(report, rules, [shown_path(path) for path in paths], fail_on))
    if outputs.form is OutputFormat.FULL:
        text.show(report, console(outputs.words_to), quiet=quiet)
    else:
        finding_lines.show(text.shown(report, quiet=quiet), outputs.form, console(outputs.words_to))
        for file in report.unread:
            print_to_stderr(f"ddp-doctor: {file.path}:{file.line} was not looked at: {file.reason}")
    for code, why in (failure for file in linted for failure in file.failures):
        print_to_stderr(f"ddp-doctor: rule {code} failed itself: {why}")
    for problem in problems:
        print_to_stderr(f"ddp-doctor: {problem}")
    return ExitCode.USAGE.value if problems else report.exit_code


def _rules(select: Sequence[str], ignore: Sequence[str]) -> list[LintRule]:
    """The rules asked for. Raises UsageError."""
    rules = chosen(RULES, rule_codes(select, RULES), rule_codes(ignore, RULES))
    if not rules:
        raise UsageError("--select and --ignore leave no rule")
    return rules


def _lint_file(path: str, rules: Sequence[LintRule]) -> Linted:
    file = read_script(path, MOST_BYTES)
    if file.reason:
        if not os.access(path, os.F_OK):
            raise UsageError(file.reason)
        return Linted(unread=Unread(path=file.path, line=1, reason=file.reason))
    if not path.endswith(".py"):
        text = file.data.decode("utf-8", errors="replace")
        require_kind(file.path, text, "a Python script", PYTHON)
    return lint_bytes(file.path, file.data, rules)
