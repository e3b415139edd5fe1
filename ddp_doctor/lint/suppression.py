"""Comments that suppress findings, as in ruff and flake8; the same words in a string do nothing.

loader = DataLoader(data)        # noqa: DDL120        this code on this statement
loader = DataLoader(data)        # noqa                all codes on this statement
# ddp-doctor: noqa: DDL105,DDL106                      these codes in the whole file
# ddp-doctor: noqa                                     all codes in the whole file
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Sequence
from functools import cached_property

_CODES = r"(?P<codes>\s*:\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*)?"
_LINE = re.compile(rf"#[^#]*?\bnoqa\b{_CODES}", re.IGNORECASE)
_FILE = re.compile(rf"^\s*#\s*ddp-doctor\s*:\s*noqa\b{_CODES}", re.IGNORECASE)


class Suppressions:
    """What the comments of one file suppress."""

    def __init__(self, lines: Sequence[str], tree: ast.Module) -> None:
        self._tree = tree
        self._comments = _comments(lines)
        self._of_file = [_codes(found) for text in self._comments.values() if (found := _FILE.match(text))]

    def suppresses(self, code: str, line: int) -> bool:
        """Whether a comment of the file, or on any line of the statement at ``line``, suppresses ``code``."""
        if not self._comments:
            return False
        if any(not codes or code in codes for codes in self._of_file):
            return True
        first, last = self._statement(line)
        for number in range(first, last + 1):
            text = self._comments.get(number, "")
            found = None if _FILE.match(text) else _LINE.search(text)
            if found and (not _codes(found) or code in _codes(found)):
                return True
        return False

    def _statement(self, line: int) -> tuple[int, int]:
        """The lines of the innermost statement; if it has a body, the lines of its head."""
        first, last = self._spans.get(line, (line, line))
        return first, max(last, line)

    @cached_property
    def _spans(self) -> dict[int, tuple[int, int]]:
        """The lines of the statement of each line; inner statements come after those around them."""
        found: dict[int, tuple[int, int]] = {}
        waiting: list[ast.AST] = list(self._tree.body)
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.stmt):
                body = getattr(node, "body", None)
                first, end = _first_line(node), node.end_lineno or node.lineno
                last = max(body[0].lineno - 1, node.lineno) if body else end
                found.update(dict.fromkeys(range(first, end + 1), (first, last)))
            waiting += [
                child
                for child in ast.iter_child_nodes(node)
                if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)
            ]
        return found


def _comments(lines: Sequence[str]) -> dict[int, str]:
    """The comments that contain noqa, by line."""
    whole = "\n".join(lines)
    if "noqa" not in whole.lower():
        return {}
    text = io.StringIO(whole)
    found: dict[int, str] = {}
    try:
        for token in tokenize.generate_tokens(text.readline):
            if token.type == tokenize.COMMENT and "noqa" in token.string.lower():
                found[token.start[0]] = token.string
    except (tokenize.TokenError, SyntaxError):  # what the parser takes and the tokenizer does not
        pass
    return found


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _codes(found: re.Match[str]) -> frozenset[str]:
    return frozenset(re.findall(r"[A-Z]+[0-9]+", (found["codes"] or "").upper()))
