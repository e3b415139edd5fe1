"""What ``ddp-doctor lint`` does around its rules: files in, report out. It stands beside commands.py, whose imports
(torch's launchers, all checks) would take longer than linting a hundred files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

from ddp_doctor.engine.lint import lint_report
from ddp_doctor.engine.memory import no_garbage_collection
from ddp_doctor.guard import say
from ddp_doctor.lint.linting import MOST_BYTES, Linted, chosen, lint_bytes
from ddp_doctor.lint.rule import LintRule
from ddp_doctor.lint.rules import RULES
from ddp_doctor.model.choices import ExitCode, FailOn
from ddp_doctor.model.lint import LintReport, Unread
from ddp_doctor.model.usage import UsageError
from ddp_doctor.render import lint_text
from ddp_doctor.render.files import CannotWrite, write
from ddp_doctor.render.terminal import console
from ddp_doctor.sources.scripts import read_script, script_paths, shown_path


@dataclass(frozen=True)
class LintOutputs:
    """Where the results go; ``-`` is stdout, and words then go to stderr."""

    json: str | None = None
    sarif: str | None = None
    junit: str | None = None
    quiet: bool = False

    def words_to(self, out: TextIO, err: TextIO) -> TextIO:
        """The stream for people."""
        return err if "-" in (self.json, self.sarif, self.junit) else out


def lint(
    given: Sequence[str],
    outputs: LintOutputs,
    streams: tuple[TextIO, TextIO],
    *,
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
    shown = [shown_path(path) for path in paths]
    problems = _write(
        (outputs.json, lambda: report.model_dump_json(indent=1) + "\n"),
        (outputs.sarif, lambda: _sarif(report, rules)),
        (outputs.junit, lambda: _junit(report, shown, fail_on)),
    )
    lint_text.show(report, console(outputs.words_to(*streams)), quiet=outputs.quiet)
    _tell_failures(linted)
    for problem in problems:
        say(f"ddp-doctor: {problem}")
    return ExitCode.USAGE.value if problems else report.exit_code


def _sarif(report: LintReport, rules: Sequence[LintRule]) -> str:
    from ddp_doctor.render import sarif  # what few ask for is imported for them alone

    return sarif.render(report, rules)


def _junit(report: LintReport, paths: Sequence[str], fail_on: FailOn) -> str:
    from ddp_doctor.render import junit

    return junit.render(report, paths, fail_on)


def _rules(select: Sequence[str], ignore: Sequence[str]) -> list[LintRule]:
    """The rules asked for. Raises UsageError."""
    wanted, unwanted = _codes(select), _codes(ignore)
    for code in (*wanted, *unwanted):
        if not any(rule.code.startswith(code) for rule in RULES):
            raise UsageError(f"there is no lint rule {code!r}; `ddp-doctor checks` lists them")
    rules = chosen(RULES, wanted, unwanted)
    if not rules:
        raise UsageError("--select and --ignore leave no rule")
    return rules


def _codes(given: Sequence[str]) -> list[str]:
    return [code.strip().upper() for text in given for code in text.split(",") if code.strip()]


def _lint_file(path: str, rules: Sequence[LintRule]) -> Linted:
    file = read_script(path, MOST_BYTES)
    if file.reason:
        if not Path(path).exists():
            raise UsageError(file.reason)
        return Linted(unread=Unread(path=file.path, line=1, reason=file.reason))
    return lint_bytes(file.path, file.data, rules)


def _write(*outputs: tuple[str | None, Callable[[], str]]) -> list[str]:
    problems = []
    for target, text in outputs:
        if target is None:
            continue
        try:
            write(target, text())
        except CannotWrite as error:
            problems.append(str(error))
    return problems


def _tell_failures(linted: Sequence[Linted]) -> None:
    for one in linted:
        for code, why in one.failures:
            say(f"ddp-doctor: rule {code} failed itself: {why}")
