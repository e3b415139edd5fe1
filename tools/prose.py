"""Find constructions that a reader has to decode in texts for users: ``python -m tools.prose [AREA ...]``.

An area is a glob from the root of the checkout. ``GLOB:errors`` means only the messages of exceptions that are raised.
Markdown is read without code and addresses, Python for its string literals and the docstrings of decorated functions.
A text that quotes another program belongs in backticks.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
#: The texts that `make lint` checks. Add an area when it has no hits.
AREAS = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/README.md", "docs/tutorial/*.md"),
    *("docs/how-to/install.md", "docs/explanation/limits.md", "ddp_doctor/cli/**/*.py", "ddp_doctor/**/*.py:errors"),
)
_MOST_WORDS = 35  # of a sentence
#: The start of a sentence, paragraph, list item or table cell.
_START = r"(?:\A|(?<=[.!?;:|])\s+|\n\s*\n|\n\s*(?:[*+|#-]+|\d+\.))[\s*_]*"
_IT = r"(?:it|they|there|nothing|nobody|none|neither|both|no)"
_IS = r"(?:is|are|was|were|be|been|being|not)"
_MODAL = r"(?:is|are|was|were|has|have|had|does|do|goes|comes|can|cannot|may|will|would|must|needs?)"
#: The text to write instead, and the construction. A space matches any white space.
TELLS = {
    "if, when; 'where' only for places": rf"{_START}Where (?!to |and |applicable|possible|appropriate|necessary)\w+"
    r" [^.?|\n]*,|\b(?:None|nothing|empty|absent|unknown),? where\b"
    r"|[,;] where (?:nothing|nobody|none|neither|no|there is no)\b",
    "name the thing: 'the settings it recommends'": rf"{_START}What (?!if |about |to )(?:\w+ ){{1,7}}{_MODAL}\b"
    r"[^.?\n]*\.|[,;] what (?:is|was|it|they|nothing|no|cannot) \w+",
    "name the rank, process or user": rf"{_START}Who (?![^.|\n]*\?)|\b(?:says?|tells?|knows|names|shows) who\b"
    r"|\bwho (?:waits|hangs|keeps the|came last)\b|\b(?:(?:no|some|any|every)body|culprits?|to blame)\b",
    "subject first: 'The first of two ranks'": rf"{_START}Of (?!course|note|particular|these,|those,)\w+",
    "repeat the noun": r"\bthose of (?:the|its|other)\b|[,;:] one (?:that|which|of whose)\b",
    "because": rf"[,;:] for {_IT} {_MODAL}\b",
    "is not a": rf"(?<!there) {_IS} no (?:file|folder|directory|number|rank|node|fault|GPU\b|hang|proof|text|model"
    rf"|trace|recording|object|pass|sign|job|list)\w*|\b{_IS} none\b(?! of)",
    "otherwise": rf"{_START}Else\b|[,;] else(?! if)\b|\b(?:and|or) else(?! if)\b",
    "even, including; 'also' before the verb": r", also (?:with|on|in|of|to|when|where|by|if|without)\b|\balso where\b",
    "at or above, since, starting with": r"\bfrom (?!now |then |there |here |that )[^.,;:()|\n]{1,32} on(?=[.,;:)])",
    "per, 'one ... per line'": r"\b(?:one|two|ranks?|lines?|objects?) an? (?:GPU|CPU|core|line|node|rank|host)\b"
    r"|\bonce an? (?:run|recording|step|node)[.,;:)]",
    "this way, that many, 'N times'": r"\b(?:begins?|ends?|starts?|named|called|printed|stays?|written|says?|is|are) so"
    r"(?=[.,;:)])|\bso (?:long|often)(?=[.,;:)])|\bso far as\b",
    "report, show, distinguish": rf"\b{_IS} told\b(?! to\b)|\b(?:tells?|told) (?:of|apart|from)\b"
    r"|\b(?:says?|said) (?:so|of|nothing|who|why|what|which|whether|how|where)\b",
    "is, appears, 'is stuck at'": r"\bstands(?! for\b)|\b(?:stand|stood|standing) (?:in|at|there|above|below|still)\b"
    r"|\blies? (?:there|beside|at)\b",
    "compared with, next to": r"\b(?:held|holds?|holding) (?:\w+ ){0,3}?against\b|\bbeside\b",
    "checked, ignored, skipped, reported": rf"\b{_IS} (?:looked at|left out|taken (?:back|apart|for))\b"
    rf"|\b{_IS} (?:passed over|waited for|given up|heeded|meant|named)(?=[.,;:)])",
    "a plain modern word": r"\b(?:anew|in vain|for want of|by turns|again and again|now and then|the whole of"
    r"|all the same|without a word|does without|gets? on(?=[.,;:)])|falls? silent|takes? its leave|comes of|alike"
    r"|of (?:its|their) own)\b",
    "the words of PyTorch and Kubernetes": r"\b(?:[Ss]ick|[Ff]olders?|[Rr]emed(?:y|ies)|[Tt]ime-outs?|lemons?|cures?"
    r"|guilty|innocent|victims?|roll call|stand-?still|[Tt]he doctor)\b",
}
_TELLS = {instead: re.compile(pattern.replace(" ", r"\s+")) for instead, pattern in TELLS.items()}
_SENTENCE = re.compile(rf"(?:(?!{_START}).)+", re.DOTALL)
#: Front matter, fences, comments, addresses and tags are not read; code is one word.
_NOT_READ = re.compile(
    r"\A---\n.*?\n---\n|^ *(?P<fence>```+|~~~+).*?^ *(?P=fence)|<!--.*?-->|(?<=\])\([^)]*\)|https?://\S+|<[^<>\n]+>"
    r"|(?P<code>``[^`]+``|`[^`\n]+`)",
    re.DOTALL | re.MULTILINE,
)
_PATTERN = re.compile(r"\\[sdwSDWb.(\[]|\(\?|\[\^|\.\*|\{\d")  # a regular expression


class Hit(NamedTuple):
    """A construction, and what to write instead."""

    path: str
    line: int
    text: str
    instead: str


def hits_in(path: str, text: str, first_line: int = 1) -> Iterator[Hit]:
    """Yield the constructions in a text, and its sentences that are too long."""
    text = _NOT_READ.sub(lambda found: re.sub(r"[^\n]", "x" if found["code"] else " ", found[0]), text)
    for instead, pattern in _TELLS.items():
        for found in pattern.finditer(text):
            line = first_line + text.count("\n", 0, found.end() - len(found[0].lstrip()))
            yield Hit(path, line, " ".join(found[0].split()), instead)
    for found in _SENTENCE.finditer(text):
        if len(words := re.findall(r"[\w'-]+", found[0])) > _MOST_WORDS:
            line = first_line + text.count("\n", 0, found.end() - len(found[0].lstrip()))
            yield Hit(path, line, f"{' '.join(words[:6])} ...", f"at most {_MOST_WORDS} words in a sentence")


def texts_in(source: str, *, only_errors: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the line and value of each string in a Python module that reads as a text for users."""
    tree = ast.parse(source)
    read: list[tuple[ast.AST, bool]] = [(tree, not only_errors)]
    while read:
        node, is_wanted = read.pop()
        is_wanted = is_wanted or isinstance(node, ast.Raise)
        match node:
            case ast.Attribute(value=ast.Constant(), attr="split"):
                continue  # a list of words
            case ast.Constant(value=str(value)) | ast.Expr(value=ast.Constant(value=str(value))):
                is_text = isinstance(node, ast.Constant)
            case ast.JoinedStr():
                value = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
                is_text = True
            case ast.FunctionDef(decorator_list=[_, *_]):
                value, is_text = ast.get_docstring(node) or "", True
                read += [(child, is_wanted) for child in ast.iter_child_nodes(node)]
            case _:
                read += [(child, is_wanted) for child in ast.iter_child_nodes(node)]
                continue
        if is_text and is_wanted and len(value.split()) > 3 and not _PATTERN.search(value):
            yield getattr(node, "lineno", 1), value


def hits(areas: tuple[str, ...]) -> Iterator[Hit]:
    """Yield the constructions in these areas of the checkout."""
    for area in areas:
        glob, _, kind = area.partition(":")
        for file in sorted(ROOT.glob(glob)):
            path, text = file.relative_to(ROOT).as_posix(), file.read_text("utf-8")
            if file.suffix != ".py":
                yield from hits_in(path, text)
                continue
            for line, value in texts_in(text, only_errors=kind == "errors"):
                yield from hits_in(path, value, line)


def main() -> int:
    """Print the hits; return 1 if there are any."""
    found = sorted(hits(tuple(sys.argv[1:]) or AREAS))
    for hit in found:
        sys.stdout.write(f"{hit.path}:{hit.line}: {hit.text!r}; write: {hit.instead}\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
