"""Outputs of failed jobs, and the expected cause of each: tests/features/jobs/logs/samples.

CLASS.md has the outputs of one cause, each below a heading and a sentence on the situation. The cause is named in
each output below "Named", and not in those below "Silent". A line after the sentence states other expectations::

    Expected: likely, rank 3          (confidence, then culprits; “nobody” if there is none)
    Expected: port-in-use             (of a silent one: the cause that is named instead)
    Expected: nothing                 (of a silent one: there is no failure in it)

A sample of several files has one block for each, with the file name as its info string: ```text rank1.log
"""

import re
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / "samples"
_SAMPLE = re.compile(r"^### (.+)\n\n((?:(?!```).*\n)+)((?:```text.*\n(?:(?!```).*\n)*```\n+)+)", re.MULTILINE)
_BLOCK = re.compile(r"^```text ?(.*)\n((?:(?!```).*\n)*)```$", re.MULTILINE)


class Sample(NamedTuple):
    """A sample: the output files of one job and the expected result."""

    cause: str  # the class of its document
    name: str
    files: dict[str, str]  # text by file name
    expected: tuple[str, ...] = ()  # the words of "Expected:"
    silent: bool = False

    def __str__(self) -> str:
        return f"{self.cause}: {self.name}"


def _of_cause(document: Path) -> list[Sample]:
    text = document.read_text(encoding="utf-8")
    named, _, silent = text.partition("\n## Silent\n")
    samples = []
    for part in (named, silent):
        for name, words, blocks in _SAMPLE.findall(part + "\n"):
            said = re.search(r"^Expected: (.+)$", words, re.MULTILINE)
            files = {file or "job.out": body for file, body in _BLOCK.findall(blocks)}
            expected = tuple(said[1].split(", ")) if said else ()
            samples.append(Sample(document.stem, name, files, expected, part is silent))
    assert len(samples) == text.count("\n### "), f"{document.name} has a heading without a sentence or a text"
    return samples


SAMPLES = [sample for document in sorted(FOLDER.glob("*.md")) for sample in _of_cause(document)]
