"""The documents show what the program prints: all cheap checks; tests/lab/test_documents.py runs the rest."""

import ast
import json
import re
import shlex
import subprocess
from collections import Counter
from importlib import metadata
from typing import Any

import pytest

from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.features.lint.rules import RULES as LINT_RULES
from tests.documents import ROOT, UNDERSTOOD, Block, blocks, documents, is_part, pinned
from tools import picture

ALL = tuple(blocks())
#: Commands whose output depends only on files.
SHOWN_AT_ONCE = [
    block for block in ALL if block.said.startswith(("ddp-doctor replay ", "ddp-doctor logs ", "ddp-doctor trace "))
]


def test_every_block_is_run_or_has_a_reason():
    """A language that no test reads would be ignored silently."""
    assert {block.language for block in ALL} == {"console", "text", "python", "json", "bash", "yaml", "ini"}
    assert all(block.note == "" for block in ALL if block.language not in ("console", "text"))
    for block in ALL:
        if block.note == "not run":
            named = re.findall(r"[\w/]+\.py\b", block.said)
            assert [name for name in named if not (ROOT / name).exists()] == [], block


def test_blocks_that_are_not_run_are_listed():
    """A block that is not run is a decision, not an accident."""
    left_out = [block.document.removeprefix("docs/") for block in ALL if block.note == "not run"]
    assert dict(Counter(left_out)) == {
        **dict.fromkeys(("CONTRIBUTING.md", "tutorial/first-run.md"), 1),
        **{f"explanation/{name}.md": 1 for name in ("architecture", "hangs", "many-nodes", "trace-accuracy")},
        **dict.fromkeys(("how-to/add-a-check.md", "how-to/add-a-command.md"), 1),
        "how-to/check-a-mesh.md": 1,
        "how-to/compare-traces.md": 1,
        "how-to/dashboards-and-alerts.md": 2,
        "how-to/does-it-fit.md": 2,
        "how-to/find-the-bad-node.md": 1,
        "how-to/find-a-fault-that-comes-and-goes.md": 1,
        "how-to/install.md": 2,
        "how-to/lab.md": 5,
        "how-to/many-nodes.md": 7,
        "how-to/measure-collectives.md": 1,
        "how-to/read-the-output-of-a-failed-job.md": 1,
        "how-to/slurm.md": 7,
        "how-to/test-your-own-model.md": 3,
        "how-to/watch-a-fleet.md": 4,
        "how-to/watch-a-job.md": 3,
    }


@pytest.mark.parametrize("block", SHOWN_AT_ONCE, ids=str)
def test_output_matches_the_document(asked, block: Block):
    done = asked(*shlex.split(block.said)[1:], cwd=ROOT)

    assert done.returncode in UNDERSTOOD, done
    assert is_part(block.text, done.stdout), done.stdout


@pytest.mark.parametrize("block", [block for block in ALL if block.language not in ("console", "text")], ids=str)
def test_blocks_in_other_languages_are_parsed(asked, block: Block):
    match block.language:
        case "python":
            ast.parse(block.text)
        case "json":
            json.loads("{" + block.text.rstrip().rstrip(",") + "}")
        case "bash":
            subprocess.run(("bash", "-n"), input=block.text, text=True, check=True)
            assert asked("env", "--from", "-", text=block.text).returncode == 0
        case "yaml":
            assert not re.search(r"^(?! *(- )?[\w-]+:( |$))", block.text.rstrip("\n"), re.MULTILINE)
        case "ini":
            assert not re.search(r"^(?!\w+=\S+$)", block.text.rstrip("\n"), re.MULTILINE)


def test_pictures_show_the_output_of_ddp_doctor(asked):
    if metadata.version("rich") != pinned("rich"):
        pytest.skip(f"they were drawn by rich {pinned('rich')}")
    done = asked(*picture.COMMAND, env=picture.TERMINAL, cwd=ROOT)

    assert "Proved: " in done.stdout
    drawn = picture.pictures(done.stdout)
    assert {name: (picture.PICTURES / name).read_text() for name in drawn} == drawn, "run `make picture`"


# --- commands that stand in a sentence, a table or a block that is not run ----------------------------

_COMMAND = re.compile(
    r"(?:(?<=[`\s/])|^)ddp-doctor"
    r" ((?:run|prolog|replay|logs|topology|env|lint|explain|schema|template|completion)\b[^`\n|;&>$]*)",
    re.MULTILINE,
)


def _command(name: str) -> Any:
    import typer

    from ddp_doctor.cli.main import app

    group: Any = typer.main.get_command(app)
    return group.get_command(None, name)


@pytest.mark.parametrize("document", documents())
def test_every_documented_command_accepts_its_documented_options(document: str):
    for words in _COMMAND.findall((ROOT / document).read_text()):
        name, *rest = words.partition("#")[0].split()
        command = _command(name)
        known = {option for parameter in command.params for option in parameter.opts}
        named = [word.partition("=")[0] for word in rest if re.match("--?[a-z]", word)]
        assert [word for word in named if word not in known] == [], words


def test_every_documented_code_is_a_rule():
    known = {rule.code for rule in (*all_rules(), *LINT_RULES)}
    named = {code for page in documents() for code in re.findall(r"\bDDL?\d{3}\b", (ROOT / page).read_text())}

    assert named - known == {"DD608"}  # the example of a new rule in add-a-check.md
