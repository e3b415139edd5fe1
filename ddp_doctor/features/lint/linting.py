"""Find the faults in the text of one file.

Comments suppress findings as in ruff and flake8; the same text in a string does not.

loader = DataLoader(data)        # noqa: DDL120        this code on this statement
loader = DataLoader(data)        # noqa                all codes on this statement
# ddp-doctor: noqa: DDL105,DDL106                      these codes in the whole file
# ddp-doctor: noqa                                     all codes in the whole file
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TypeVar

from ddp_doctor.features.lint.report import Linted, LintFinding, Unread
from ddp_doctor.features.lint.rule import LintRule, Spot
from ddp_doctor.features.lint.rules import RULES
from ddp_doctor.features.lint.script import Script
from ddp_doctor.model.finding import Culprit, Evidence, Remedy
from ddp_doctor.model.rule import Described
from ddp_doctor.parse.redact import KEPT_BACK, is_withheld
from ddp_doctor.parse.text import as_utf8

AnyRule = TypeVar("AnyRule", bound=Described)

_CODES = r"(?P<codes>\s*:\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?"
_LINE = re.compile(rf"#[^#]*?\bnoqa\b{_CODES}", re.IGNORECASE)
_FILE = re.compile(rf"^\s*#\s*ddp-doctor\s*:\s*noqa\b{_CODES}", re.IGNORECASE)


class Suppressions:
    """The findings that the comments of one file suppress."""

    def __init__(self, lines: Sequence[str], tree: ast.Module) -> None:
        self._tree = tree
        self._noqa_comments = _noqa_comments(lines)
        self._of_file = [_codes(found) for text in self._noqa_comments.values() if (found := _FILE.match(text))]

    def suppresses(self, code: str, line: int) -> bool:
        """Return True if a comment of the file, or on any line of the statement at ``line``, suppresses ``code``."""
        if not self._noqa_comments:
            return False
        if any(not codes or code in codes for codes in self._of_file):
            return True
        first, last = self._spans.get(line, (line, line))
        for number in range(first, max(last, line) + 1):
            text = self._noqa_comments.get(number, "")
            found = None if _FILE.match(text) else _LINE.search(text)
            if found and (not _codes(found) or code in _codes(found)):
                return True
        return False

    @cached_property
    def _spans(self) -> dict[int, tuple[int, int]]:
        """Return the lines of the innermost statement at each line, without the body of a statement that has one."""
        found: dict[int, tuple[int, int]] = {}
        waiting: list[ast.AST] = list(self._tree.body)
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.stmt):
                body, decorators = getattr(node, "body", None), getattr(node, "decorator_list", [])
                first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
                end = node.end_lineno or node.lineno
                last = max(body[0].lineno - 1, node.lineno) if body else end
                found.update(dict.fromkeys(range(first, end + 1), (first, last)))  # inner ones come later
            waiting += [
                child
                for child in ast.iter_child_nodes(node)
                if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)
            ]
        return found


def _noqa_comments(lines: Sequence[str]) -> dict[int, str]:
    whole = "\n".join(lines)
    if "noqa" not in whole.lower():
        return {}
    text = io.StringIO(whole)
    found: dict[int, str] = {}
    with suppress(tokenize.TokenError, SyntaxError):  # the parser accepts some text that the tokenizer rejects
        for token in tokenize.generate_tokens(text.readline):
            if token.type == tokenize.COMMENT and "noqa" in token.string.lower():
                found[token.start[0]] = token.string
    return found


def _codes(found: re.Match[str]) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Z]+[0-9]+", (found["codes"] or "").upper()))


#: Larger scripts are not written by hand, and Python's parser needs a hundred times the size of the text.
MOST_BYTES = 1024 * 1024
#: A rule can apply only to a file with a word of each list, because the full names that rules search for contain both.
_OF_RAY = ("ray.train", "from ray")
_WORDS = ("torch", "distributed", "deepspeed", "accelerate", "horovod", "lightning", "transformers", "trl", *_OF_RAY)
_SUBJECTS = (
    *("distributed", "DataParallel", "DataLoader", "GradScaler", "environ", "putenv"),
    *("deepspeed", "accelerate", "Lightning", "Fabric", "Trainer", "TrainingArguments", "Callback", *_OF_RAY),
)
_LONGEST_LINE = 200
#: Recursion limit while a tree is walked; Python's own limit is 1000.
_DEEPEST = 6000


class NotPython(Exception):
    """The text is not Python of this release; the message gives the reason, ``line`` the place."""

    def __init__(self, reason: str, line: int = 1) -> None:
        super().__init__(reason)
        self.line = line


def lint_bytes(path: str, data: bytes, rules: Sequence[LintRule] = RULES) -> Linted:
    """Return the findings in a file, from its bytes on disk."""
    try:
        return lint_text(path, decoded(data), rules)
    except NotPython as why:
        return Linted(unread=Unread(path=path, line=why.line, reason=str(why)))


def lint_text(path: str, text: str, rules: Sequence[LintRule] = RULES) -> Linted:
    """Return the findings in a text, or the reason and the line if it cannot be parsed."""
    try:
        with _deep_nesting():
            tree = parsed(text)
            is_of_interest = all(any(word in text for word in words) for words in (_WORDS, _SUBJECTS))
            return _judged(Script(path, text, tree), rules) if is_of_interest else Linted()
    except NotPython as why:
        return Linted(unread=Unread(path=path, line=why.line, reason=str(why)))
    except RecursionError:
        return Linted(unread=Unread(path=path, line=1, reason="is nested too deeply to be followed"))


@contextmanager
def _deep_nesting() -> Iterator[None]:
    """Raise the recursion limit: each of two hundred ``elif`` is nested in the previous one."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _DEEPEST))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def decoded(data: bytes) -> str:
    """Decode a file by its byte-order mark or coding line, otherwise as UTF-8. Raises NotPython."""
    if len(data) > MOST_BYTES:
        raise NotPython(f"is larger than {MOST_BYTES >> 10} KiB, the size limit for a script")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise NotPython(f"is not {error.encoding}: {error.reason}", line) from error
    except (SyntaxError, LookupError, ValueError) as error:
        raise NotPython(f"cannot be decoded: {error}") from error


def parsed(text: str) -> ast.Module:
    """Return the syntax tree. Raises NotPython."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in strings, which no rule reports
            return ast.parse(text)
    except SyntaxError as error:
        raise NotPython(f"does not parse: {error.msg}", error.lineno or 1) from error
    except (RecursionError, MemoryError) as error:
        raise NotPython("is nested too deeply to be parsed") from error
    except ValueError as error:  # null bytes, lone surrogates
        raise NotPython(f"is not Python: {error}") from error


def _judged(script: Script, rules: Sequence[LintRule]) -> Linted:
    suppressions = Suppressions(script.lines, script.tree)
    findings, suppressed, failures = [], 0, []
    for rule in rules:
        try:
            spots = list(rule.apply(script))
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 - one broken rule must not silence the others
            failures.append((rule.code, f"{type(error).__name__}: {error} ({script.path})"))
            continue
        for spot in spots:
            finding = _finding(script, rule, spot)
            if suppressions.suppresses(rule.code, finding.line):
                suppressed += 1
            else:
                findings.append(finding)
    findings.sort(key=lambda finding: (finding.line, finding.column, finding.code))
    return Linted(tuple(_once(findings)), suppressed, failures=tuple(failures))


#: Rules on ranks that miss a collective: a rule does not report what an earlier one has reported.
_OF_MISSED = ("DDL133", "DDL134", "DDL135")


def _once(findings: Iterable[LintFinding]) -> Iterator[LintFinding]:
    seen = set[int]()
    for finding in findings:
        if finding.code not in _OF_MISSED or finding.line not in seen:
            yield finding
        seen |= {finding.line} if finding.code in _OF_MISSED else set[int]()


def _finding(script: Script, rule: LintRule, spot: Spot) -> LintFinding:
    node, lines = spot.node, script.lines
    line = getattr(node, "lineno", 1)
    end_line = getattr(node, "end_lineno", None) or line
    source = lines[line - 1].strip() if line <= len(lines) else ""
    if is_withheld("", source):
        source = KEPT_BACK
    elif len(source) > _LONGEST_LINE:
        source = f"{source[:_LONGEST_LINE]}..."
    remedies = []
    if spot.remedy:
        commands = tuple(map(as_utf8, spot.write))
        summary = as_utf8(spot.remedy)
        remedies.append(Remedy(summary=summary, commands=commands, scope="code", cost=spot.cost))
    return LintFinding(
        code=rule.code,
        name=rule.name,
        severity=spot.severity or rule.severity,
        title=as_utf8(spot.title),
        detail=as_utf8(spot.detail),
        confidence=spot.confidence,
        culprits=(Culprit(kind="file", name=f"{script.path}:{line}"),),
        evidence=(Evidence(check="lint", text=source),) if source else (),
        remedies=tuple(remedies),
        page=rule.page,
        path=script.path,
        line=line,
        column=_column(lines, line, getattr(node, "col_offset", 0)),
        end_line=end_line,
        end_column=_column(lines, end_line, getattr(node, "end_col_offset", None) or 0),
    )


def _column(lines: Sequence[str], line: int, offset: int) -> int:
    """Return the column in characters, from one; the parser counts bytes of UTF-8 from zero."""
    text = lines[line - 1] if line <= len(lines) else ""
    return len(text.encode("utf-8", "replace")[:offset].decode("utf-8", "replace")) + 1


def chosen(rules: Iterable[AnyRule], select: Sequence[str], ignore: Sequence[str]) -> list[AnyRule]:
    """Return the rules whose codes begin with one of ``select`` (all if empty) and with none of ``ignore``."""
    kept = [rule for rule in rules if not select or rule.code.startswith(tuple(select))]
    return [rule for rule in kept if not (ignore and rule.code.startswith(tuple(ignore)))]
