"""The check of texts against constructions that a reader has to decode."""

from pathlib import Path

import pytest

from tools import prose

BAD = {
    "Where nothing is left, the run ends.": "if, when; 'where' only for places",
    "What it recommends to set can be tried first.": "name the thing: 'the settings it recommends'",
    "Who is missing is not yet guilty.": "name the rank, process or user",
    "Of two ranks the first is reported.": "subject first: 'The first of two ranks'",
    "The rates are those of the others.": "repeat the noun",
    "It fails, for it has to wait.": "because",
    "The path is no folder.": "is not a",
    "NCCL if there are GPUs, else gloo.": "otherwise",
    "It reads traces, also in archives.": "even, including; 'also' before the verb",
    "It is an error from three times on.": "at or above, since, starting with",
    "Write the hosts, one a line.": "per, 'one ... per line'",
    "Ignore rules whose codes begin so.": "this way, that many, 'N times'",
}
GOOD = (
    "If nothing is left, the run ends. Where is the file?",
    "It tries each recommended setting first. What does it test?",
    "A missing node is not necessarily at fault.",
    "Of course, the first of two ranks is reported.",
    "The other ranks' values are higher than those on this node.",
    "It fails because it has to wait, for example for a rank.",
    "The path is not a directory, and there is no file.",
    "The backend is NCCL, or gloo on machines without GPUs. Something else is wrong.",
    "It also reads compressed traces, including archives.",
    "From now on, the error is reported at 3x or more, from rank 0 on node 1.",
    "One rank per GPU, and one object per line, in the directory where it runs.",
    "The timeout is that long because `the doctor` and `sick` are code.",
)


@pytest.mark.parametrize(("sentence", "instead"), BAD.items())
def test_construction_is_found(sentence: str, instead: str):
    assert instead in [hit.instead for hit in prose.hits_in("page.md", sentence)]


@pytest.mark.parametrize("sentence", GOOD)
def test_good_sentence_has_no_hits(sentence: str):
    assert list(prose.hits_in("page.md", sentence)) == []


def test_markdown_is_read_without_code_and_with_line_numbers():
    page = "# A\n\n```text\nElse nothing.\n```\n<!-- Else -->\n* item\n* it is held\n  against others\n| a | Else b |\n"

    assert [(hit.line, hit.text) for hit in prose.hits_in("page.md", page)] == [(10, "Else"), (8, "held against")]


def test_sentence_over_35_words_is_found():
    assert not list(prose.hits_in("page.md", "word " * 35 + ". " + "word " * 35))
    (hit,) = prose.hits_in("page.md", "word " * 36)
    assert hit.instead == "at most 35 words in a sentence"


MODULE = '''
"""The doctor of a module."""
import re

PATTERN = re.compile(r"the doctor \\w+ here")

@command
def run(x):
    """Ask the doctor of these nodes."""
    option(help="The folder of these files" f" and {x} folders")
    if x:
        raise ValueError(f"{x} is the first sick node")

def helper():
    """Return the folder of a run."""
'''


def test_python_is_read_for_help_and_errors_but_not_for_docstrings():
    assert [(line, text.partition(" ")[0]) for line, text in sorted(prose.texts_in(MODULE))] == [
        (8, "Ask"),
        (10, "The"),
        (12, "X"),
    ]
    assert [text for _, text in prose.texts_in(MODULE, only_errors=True)] == ["X is the first sick node"]


def test_each_checked_area_exists():
    for area in prose.AREAS:
        assert list(prose.ROOT.glob(area.partition(":")[0])), area


def test_hits_of_an_area_are_printed_with_their_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "page.md").write_text("Fine.\n\nElse nothing.\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["prose", "*.md"])

    assert prose.main() == 1
    assert capsys.readouterr().out == "page.md:3: 'Else'; write: otherwise\n"
