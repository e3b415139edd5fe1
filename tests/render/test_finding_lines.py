"""Findings in one line each, for people, GitHub Actions and collectors of logs."""

import io
import json

import pytest

from ddp_doctor.model.choices import OutputFormat
from ddp_doctor.render import finding_lines, screen
from tests.render.reports import error, remedy, report

HOSTILE = "50% of\n::error::GPU 0, GPU 1\r\x1b[31m"


def shown(capsys: pytest.CaptureFixture[str], form: OutputFormat) -> tuple[str, str]:
    finding = error(remedy()).model_copy(update={"title": HOSTILE, "detail": "They wait."})
    words = io.StringIO()
    finding_lines.show(report(finding, run_id="r1"), form, screen.console(words))
    return capsys.readouterr().out, words.getvalue()


def test_concise_format_is_one_line_per_finding_and_the_verdict(capsys):
    out, words = shown(capsys, OutputFormat.CONCISE)

    assert out == ""
    assert words.splitlines()[0] == "error DD601 50% of ::error::GPU 0, GPU 1 ?[31m"
    assert len(words.splitlines()) == 2


def test_a_title_cannot_be_a_command_of_github(capsys):
    out, words = shown(capsys, OutputFormat.GITHUB)

    assert out == (
        "::error title=DD601 a-fault::error DD601 50%25 of ::error::GPU 0, GPU 1 ?[31m%0AThey wait.%0AFix: mend it\n"
    )
    assert "DD601" not in words


def test_jsonl_format_is_one_object_per_finding_with_its_run(capsys):
    (line,) = shown(capsys, OutputFormat.JSONL)[0].splitlines()
    finding = json.loads(line)

    assert (finding["run_id"], finding["code"], finding["title"]) == ("r1", "DD601", HOSTILE)
    assert line.isascii()
