"""The report as Markdown: the content of a ticket, read by a parser of Markdown."""

import re

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ddp_doctor.model.choices import CheckStatus
from ddp_doctor.model.finding import Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import CheckResult
from ddp_doctor.render import markdown
from tests.recordings import SITUATIONS, judged
from tests.render.reports import error, report

FOLDS = {"<details>", "</details>", "<summary>", "</summary>"}
EVIL = "no|de`1`` <img src=x onerror=alert(1)> </details> [x](https://evil.example) ![p](http://p) *b* _i_ ~~s~~ &lt;"


def tokens(text: str) -> list[Token]:
    found = MarkdownIt("commonmark").enable("table").parse(text)
    return [each for token in found for each in (token, *(token.children or ()))]


def html_of(text: str) -> set[str]:
    pieces = [token.content for token in tokens(text) if token.type in ("html_block", "html_inline")]
    return {tag for piece in pieces for tag in re.findall("<[^>]*>?", piece)}


def block(title: str, *, command: str = "nvidia-smi", reason: str = "") -> str:
    evidence = (Evidence(check="gpus", text=title),)
    found = error(Remedy(summary=title, commands=(command,))).model_copy(
        update={"title": title, "detail": title, "evidence": evidence}
    )
    check = CheckResult(id="gpus", title="GPUs", status=CheckStatus.SKIPPED, reason=reason)
    shown = report(found).model_copy(update={"summary": f"Unhealthy: {title}", "checks": (check,)})
    return markdown.render(shown, Recording())


def test_names_with_markdown_and_html_are_shown_as_text():
    text = block(EVIL, reason=EVIL)
    assert html_of(text) <= FOLDS
    parsed = tokens(text)
    assert not {token.type for token in parsed} & {"link_open", "image", "em_open", "code_inline", "s_open"}
    bold = "".join(token.content for token in parsed if token.type == "strong_open")
    assert bold == ""
    rows = [token for token in parsed if token.type == "td_open"]
    assert len(rows) == 2 * 2 + 3  # ddp-doctor and when; one check: no cell ends early
    shown = "".join(token.content for token in parsed if token.type in ("text", "text_special"))
    assert shown.count(EVIL) == 6  # unchanged: summary, title, detail, evidence, remedy, reason


@pytest.mark.parametrize(
    "start", ["# x", "1. x", "12) x", "- x", "+ x", "> x", "=== x", "* * *", "    x", "```", "~~~"]
)
def test_text_at_the_start_of_a_line_does_not_begin_a_block(start: str):
    plain = {token.type for token in tokens(block("x"))}
    assert {token.type for token in tokens(block(start))} <= plain


def test_names_with_an_at_sign_notify_no_user_and_no_issue_is_linked():
    for word in ("@everyone", "root@node|1", "`@x`", "#12", "group/project!3"):
        parsed = tokens(block(f"GPU of {word} lost"))
        assert [token.content for token in parsed if token.type == "code_inline"] != []
        assert not any(word in token.content for token in parsed if token.type == "text")


def test_a_line_to_paste_cannot_end_its_own_code():
    command = "echo ````\n```\n<b>x</b>"
    [code, _] = [token.content for token in tokens(block("x", command=command)) if token.type == "fence"] + [""]
    assert code == f"{command}\n"


@pytest.mark.parametrize("secret", ["hf_abcdefghijklmnopqrstuvwxyz", "etcd://user:secret@host:1", "Bearer abcdefghijk"])
def test_text_like_a_credential_is_removed(secret: str):
    text = block(f"torch said {secret}", command=f"export X={secret}", reason=secret)
    assert secret not in text
    assert "(kept back)" in text


def test_every_recording_has_a_block_with_its_findings_and_versions():
    for situation in SITUATIONS[::5]:
        outcome = judged(situation)
        text = markdown.render(outcome.report, outcome.recording)
        assert html_of(text) <= FOLDS, situation
        assert text.count("<details>") == text.count("</details>")
        for finding in outcome.report.findings:
            assert f"**{finding.severity.value.upper()} {finding.code}** " in text


def test_different_versions_are_listed_with_their_nodes():
    outcome = judged("software/driver-too-old")
    text = markdown.render(outcome.report, outcome.recording)
    assert re.search(r"^\| driver \| \S+ on node0; \S+ on node1 \|$", text, re.MULTILINE), text
