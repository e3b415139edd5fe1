"""Printed text is plain: nothing from a recording or a child process controls the reader's terminal."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.cli.error_handler import print_to_stderr
from ddp_doctor.model.choices import CheckStatus, Detail, Verdict
from ddp_doctor.model.finding import Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import CheckResult, Report
from ddp_doctor.render import screen, terminal
from ddp_doctor.render.progress import progress
from ddp_doctor.render.text import one_line, plain
from tests.render.reports import Screen, error, report

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"


@given(st.text())
def test_plain_text_has_no_control_character_but_tabs_and_newlines(text: str) -> None:
    controls = {chr(code) for code in (*range(32), *range(0x7F, 0xA0))} - {"\n", "\t"}

    assert not controls & set(plain(text))
    assert not {"\n", "\t"} & set(one_line(text))


def test_characters_that_hide_or_reverse_text_become_question_marks() -> None:
    assert plain("mlx5\u200b_0 \u202eexe.5xlm\u2066\ufeff") == "mlx5?_0 ?exe.5xlm??"


@pytest.mark.parametrize("text", ["GPU0\tGPU1\nGPU1", "zwölf µs → 1", "", "[bold]host[/bold] :smile:"])
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert plain(text) == text


def hostile_report() -> Report:
    evil = f"rank 3{CLIPBOARD}\x9b2J\x7f"
    checks = (
        CheckResult(id=f"p2p{evil}", title=evil, status=CheckStatus.PASSED),
        CheckResult(id="host", title="host", status=CheckStatus.FAILED, reason=evil),
    )
    found = error(Remedy(summary=evil, commands=(evil,), cost=evil, undo=evil)).model_copy(
        update={
            "title": f"{evil}\nHealthy: all ranks passed.",
            "detail": evil,
            "evidence": (Evidence(check="p2p", text=evil),),
        }
    )
    summary = f"Unhealthy: {evil}\nHealthy: all ranks passed."
    return report(found).model_copy(
        update={"verdict": Verdict.UNHEALTHY, "exit_code": 1, "summary": summary, "checks": checks}
    )


@pytest.mark.parametrize("detail", Detail)
def test_escapes_in_a_report_do_not_reach_the_terminal(detail: Detail) -> None:
    out = io.StringIO()
    terminal.show(hostile_report(), Recording(), screen.console(out), f"/tmp/{CLIPBOARD}", detail)

    assert "rank 3?]52;c;ZXZpbA==?" in out.getvalue()
    assert plain(out.getvalue()) == out.getvalue()


def test_a_newline_in_a_title_or_summary_does_not_forge_a_line() -> None:
    out = io.StringIO()
    terminal.show(hostile_report(), Recording(), screen.console(out))

    assert not any(line.startswith("Healthy") for line in out.getvalue().splitlines())


def test_progress_is_one_plain_line_on_a_terminal_with_its_number_and_the_time() -> None:
    out = Screen()
    with progress(screen.console(out, width=60), ("host", "p2p"), quiet=False) as tell:
        tell("p2p")
        tell(f"[red]{CLIPBOARD}\nrank 0")

    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).split("\r")
    assert "2 of 2  [red]?]52;c;ZXZpbA==? rank 0, 0 s\n" in lines, lines
    assert CLIPBOARD not in out.getvalue()


def test_only_long_runs_print_a_progress_line_outside_of_a_terminal(monkeypatch) -> None:
    out, now = io.StringIO(), 1000.0
    monkeypatch.setattr("ddp_doctor.render.progress.monotonic", lambda: now)
    with progress(screen.console(out), ("p2p", "repeats"), quiet=False) as tell:
        for name in ("p2p", "repeats", *(f"repeat {number}" for number in range(1, 9))):
            now += 100.0
            tell(name)

    assert out.getvalue().splitlines() == [
        "2 of 2  repeat 1, 300 s",
        "2 of 2  repeat 4, 600 s",
        "2 of 2  repeat 7, 900 s",
    ]


def test_a_sentence_on_a_terminal_of_thirty_columns_is_broken_between_words(monkeypatch) -> None:
    out = Screen()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setenv("COLUMNS", "30")
    print_to_stderr("ddp-doctor: --hosts and --hostfile are mutually exclusive; give one of them")

    assert out.getvalue().splitlines() == [
        "ddp-doctor: --hosts and",
        "    --hostfile are mutually",
        "    exclusive; give one of",
        "    them",
    ]
