"""``ddp-doctor lint``: lints files, walks directories, and reads stdin for ``-``.

Job scripts and manifests given by name are read as ``env --from`` does; directories only for ``*.py``.

It does not import launchers and checks, because that takes longer than linting a hundred files.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path

from ddp_doctor.cli.error_handler import print_to_stderr
from ddp_doctor.cli.given import decoded_text, require_kind, rule_codes
from ddp_doctor.cli.outputs import Outputs, OwnResults
from ddp_doctor.engine.memory import no_garbage_collection
from ddp_doctor.features.lint.linting import MOST_BYTES, chosen, lint_bytes
from ddp_doctor.features.lint.render import text
from ddp_doctor.features.lint.report import Linted, LintFinding, LintReport, Unread, lint_report
from ddp_doctor.features.lint.rule import LintRule
from ddp_doctor.features.lint.rules import RULES
from ddp_doctor.model.choices import Command, ExitCode, FailOn, OutputFormat, UsageError
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.finding import Culprit
from ddp_doctor.model.rule import Described
from ddp_doctor.parse.file_kinds import PYTHON, is_launch
from ddp_doctor.parse.text import as_utf8
from ddp_doctor.render import finding_lines
from ddp_doctor.render.screen import console
from ddp_doctor.sources.given import CannotRead, is_folder, path_beside, read_beside, read_given

#: Directories without code of the user.
_NOT_WALKED = ("__pycache__", "node_modules", "build", "dist", "site-packages", "venv", "env")
#: The file that ``python -m venv`` and virtualenv create.
_ENVIRONMENT = "pyvenv.cfg"
_NOTHING = "does not start ranks or set any known variable"
_IN_LINE = re.compile(r"(?:(?<!\S)(\S+) )?\bline (\d+)")


def lint(
    given: Sequence[str],
    outputs: Outputs,
    *,
    quiet: bool = False,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    fail_on: FailOn = FailOn.ERROR,
) -> int:
    """Lint the files and return the exit code. Raises UsageError."""
    started_at = datetime.now(timezone.utc)
    paths = list(_script_paths(given))
    if not paths:
        raise UsageError(f"found no Python file in {', '.join(map(quoted, given))}")
    read = _reader()
    launches = {path: found for path in paths if (found := _launch_text(path, read)) is not None}
    known = _rules_of_launches() if launches else ()
    codes = rule_codes(select, (*RULES, *known)), rule_codes(ignore, (*RULES, *known))
    rules, of_launches = chosen(RULES, *codes), chosen(known, *codes)
    if not (rules or of_launches):
        raise UsageError("--select and --ignore exclude every rule; select more rules or ignore fewer")
    kept = {rule.code for rule in of_launches}
    with no_garbage_collection():  # which would search a hundred trees
        linted = [
            _lint_launch(path, launches[path], kept) if path in launches else _lint_file(path, rules, read)
            for path in paths
        ]
    report = lint_report([*_each_once(linted)], fail_on, started_at)
    problems = outputs.write(_results(report, [*rules, *of_launches], [_shown_path(path) for path in paths], fail_on))
    if outputs.form is OutputFormat.FULL:
        text.show(report, console(outputs.words_to), quiet=quiet)
    else:
        finding_lines.show(text.shown(report, quiet=quiet), outputs.form, console(outputs.words_to))
        for file in report.unread:
            print_to_stderr(f"ddp-doctor: {file.path}:{file.line} {file.reason}; the file was not checked")
    for code, why in (failure for file in linted for failure in file.failures):
        print_to_stderr(f"ddp-doctor: internal error in rule {code} ({why}); please report it")
    for problem in problems:
        print_to_stderr(f"ddp-doctor: {problem}")
    return ExitCode.USAGE.value if problems else report.exit_code


def _results(report: LintReport, rules: Sequence[Described], paths: Sequence[str], fail_on: FailOn) -> OwnResults:
    """Return a function for each output. ``rules`` were applied, and ``paths`` includes files without findings."""

    def html() -> str:
        from ddp_doctor.model.recording import Options, Recording
        from ddp_doctor.render.html import page

        return page.render(report, Recording(options=Options(command=Command.LINT)))

    def as_sarif() -> str:
        from ddp_doctor.features.lint.render import sarif

        return sarif.render(report, rules)

    def as_junit() -> str:
        from ddp_doctor.features.lint.render import junit

        return junit.render(report, paths, fail_on)

    return {"json": report.as_json, "html": html, "sarif": as_sarif, "junit": as_junit}


def _each_once(linted: Iterable[Linted]) -> Iterator[Linted]:
    """Report a finding once if a given script is also run by another given script."""
    seen = set[tuple[object, ...]]()
    for file in linted:
        keys = {(each.path, each.line, each.column, each.code, each.title): each for each in file.findings}
        yield replace(file, findings=tuple(each for key, each in keys.items() if key not in seen))
        seen |= keys.keys()


def _lint_file(path: str, rules: Sequence[LintRule], read: Callable[[str], bytes]) -> Linted:
    shown = _shown_path(path)
    try:
        data = read(path)
    except (OSError, CannotRead, ValueError) as error:
        reason = as_utf8(str(error))
        if isinstance(error, OSError):
            reason = f"cannot read {quoted(shown)}: {error.strerror}"
        if not os.access(path, os.F_OK):
            raise UsageError(reason) from error
        return Linted(unread=Unread(path=shown, line=1, reason=reason))
    if not path.endswith(".py"):
        require_kind(shown, data.decode("utf-8", errors="replace"), "a Python script", PYTHON)
    return lint_bytes(shown, data, rules)


def _launch_text(path: str, read: Callable[[str], bytes]) -> str | None:
    """Return the text of a job script, a manifest or a launcher's configuration; None for any other file."""
    if path.endswith(".py"):
        return None
    try:
        data = read(path)
    except (OSError, CannotRead, ValueError):
        return None
    decoded = decoded_text(data)
    return decoded if len(data) <= MOST_BYTES and is_launch(decoded, path) else None


def _rules_of_launches() -> tuple[Described, ...]:
    from ddp_doctor.engine.diagnose import all_rules  # takes longer than linting

    return tuple(rule for rule in all_rules() if rule.code.startswith("DD1"))


def _lint_launch(path: str, content: str, kept: Collection[str]) -> Linted:
    """Report the findings of ``env --from`` in a file and the scripts it runs, each in its line."""
    from ddp_doctor.app.inspection import read_settings
    from ddp_doctor.facts.node.env_vars import SettingText

    shown = _shown_path(path)
    outcome = read_settings(content, read_file=partial(read_beside, path, most_bytes=MOST_BYTES))
    found = outcome.recording.first(SettingText)
    if found is None or not (found.written or found.launches or found.unchecked):
        why = outcome.recording.readings[0].reason if found is None else None
        reason = why if why and "sets no variable" not in why else _NOTHING
        return Linted(unread=Unread(path=shown, line=1, reason=reason))
    lines = {written.name: written.line for written in found.written}
    run = {each.file for each in found.launches} | {each.file for each in found.unchecked}
    files = {name: as_utf8(path_beside(path, name) or shown) if name else shown for name in run}
    findings = []
    for finding in outcome.report.findings:
        if finding.code in kept:
            names = [lines[culprit.name] for culprit in finding.culprits if culprit.name in lines]
            at = _IN_LINE.search("\n".join(evidence.text for evidence in finding.evidence))
            line = int(at[2]) if at else names[0] if names else 1
            file = files.get(at[1] or "", shown) if at else shown
            place = Culprit(kind="file", name=f"{file}:{line}")
            where = {"path": file, "line": line, "column": 1, "end_line": line, "end_column": 1}
            findings.append(LintFinding(**dict(finding) | {"culprits": (*finding.culprits, place)} | where))
    findings.sort(key=lambda finding: (finding.line, finding.code))
    unread = None
    if found.unchecked:
        first = found.unchecked[0]
        unread = Unread(path=files[first.file], line=first.line, reason=f"`{first.quote}`: {first.reason}")
    return Linted(tuple(findings), unread=unread)


def _reader() -> Callable[[str], bytes]:
    """Return a function that reads a file; stdin, which can be read only once, is cached."""
    stdin = cache(lambda: read_given("-"))
    return lambda path: stdin() if path == "-" else _read(path)


def _read(path: str) -> bytes:
    """Return the bytes of a file; for a file that is too large, one byte more than the limit."""
    if Path(path).is_file() and Path(path).stat().st_size > MOST_BYTES:
        with Path(path).open("rb") as file:
            return file.read(MOST_BYTES + 1)
    return read_given(path)


def _script_paths(given: Sequence[str]) -> Iterator[str]:
    """Yield each path once, in the given order; for a directory, all ``*.py`` below it, by name."""
    seen = set[str]()
    for name in given:
        path = name if name == "-" else str(Path(name))  # ./train.py is train.py
        below = _walk(path, set()) if path != "-" and is_folder(path) else [path]
        for script in (path.removeprefix("./") for path in below):
            if script not in seen:
                seen.add(script)
                yield script


def _walk(folder: str, above: set[tuple[int, int]]) -> Iterator[str]:
    """Yield the scripts of a directory; a link back to a parent directory is not followed again."""
    try:
        status = Path(folder).stat()
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        yield folder  # reading it will report the error
        return
    here = (status.st_dev, status.st_ino)
    if here in above or (above and any(entry.name == _ENVIRONMENT for entry in entries)):
        return
    for entry in entries:
        if entry.is_dir():
            if not entry.name.startswith(".") and entry.name not in _NOT_WALKED:
                yield from _walk(entry.path, above | {here})
        elif entry.name.endswith(".py") and entry.is_file():  # skips an editor's lock, which is a broken link
            yield entry.path


def _shown_path(path: str) -> str:
    """Return a path as reports show it: stdin by name, without characters that JSON cannot represent."""
    return "<stdin>" if path == "-" else as_utf8(path)
