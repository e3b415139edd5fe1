"""The scripts of tests/features/lint/samples, and the findings that lint must report in them.

DDL101.md has the scripts of one rule, each below a heading and a sentence about the situation. A line that must be
reported ends in a comment such as ``# expect: DDL101, DDL104``; no other line may be reported. Scripts below "Reported"
have the rule's fault, scripts below "Silent" have no finding. public/ has entire training scripts with the same
comments.
"""

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "samples"
_SCRIPT = re.compile(r"^### (.+)\n\n(?!```)(?:.+\n)+\n```python\n((?:(?!```).*\n)*)```$", re.MULTILINE)


class Sample(NamedTuple):
    """A sample script."""

    rule: str  # the code of the rule that it is a sample of; "" for a public script
    name: str
    text: str
    silent: bool = False

    def __str__(self) -> str:
        return f"{self.rule} {self.name}".strip()

    @property
    def beside(self) -> list[str]:
        """The files in the script's directory: ``# beside: random.py, helpers.py``."""
        said = re.search(r"# beside: (.+)", self.text)
        return said[1].split(", ") if said else []

    @property
    def expected(self) -> set[tuple[int, str]]:
        """The line and code of every finding that the script's comments expect."""
        return {
            (number, code)
            for number, line in enumerate(self.text.splitlines(), 1)
            if (said := re.search(r"# expect: ([A-Z0-9, ]+)", line))
            for code in re.findall(r"DDL\d+", said[1])
        }


def _of_rule(document: Path) -> list[Sample]:
    text = document.read_text(encoding="utf-8")
    reported, _, silent = text.partition("\n## Silent\n")
    samples = [
        Sample(document.stem, name[0].lower() + name[1:], script, part is silent)
        for part in (reported, silent)
        for name, script in _SCRIPT.findall(part)
    ]
    assert len(samples) == text.count("\n### "), f"{document.name} has a heading without a sentence or a script"
    return samples


OF_RULES = [sample for document in sorted(FOLDER.glob("*.md")) for sample in _of_rule(document)]
PUBLIC = [Sample("", path.stem, path.read_text()) for path in sorted(FOLDER.glob("public/*.py"))]


def sample(rule: str, name: str) -> Sample:
    """The sample of this rule below this heading, in lower case."""
    (found,) = (sample for sample in OF_RULES if (sample.rule, sample.name) == (rule, name))
    return found
