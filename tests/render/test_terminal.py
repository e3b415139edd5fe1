"""The report for people, where there is more to tell than a screen holds."""

import io
from typing import Any

from ddp_doctor.model.choices import CheckStatus, Confidence, Severity, Verdict
from ddp_doctor.model.finding import Evidence, Finding
from ddp_doctor.model.report import CheckResult, Report, Tool
from ddp_doctor.render import terminal


def _shown(**fields: Any) -> list[str]:
    given: dict[str, Any] = {
        "run_id": "r",
        "started_at": "",
        "duration_s": 1.0,
        "verdict": Verdict.HEALTHY,
        "exit_code": 0,
        "summary": "Healthy.",
    }
    stream = io.StringIO()
    report = Report(tool=Tool(version="0"), **given | fields)
    terminal.show(report, terminal.console(stream, width=100))
    return stream.getvalue().splitlines()


def test_a_check_that_could_not_look_on_one_node_says_so_beside_its_mark():
    gpus = CheckResult(
        id="gpus", title="GPUs", status=CheckStatus.PASSED, reason="on node2: no GPU", duration_s=0.1
    )

    assert " ok gpus           GPUs (0.10 s); not tested on node2: no GPU" in _shown(checks=(gpus,))


def test_thousands_of_lines_of_evidence_are_cut_and_counted():
    lines = tuple(Evidence(check="p2p", text=f"pair {number}") for number in range(5000))
    finding = Finding(
        code="DD000", name="a-b", severity=Severity.ERROR, title="Much", confidence=Confidence.PROVED, evidence=lines
    )  # fmt: skip

    shown = _shown(findings=(finding,))

    assert "  - pair 23" in shown
    assert "  - and 4976 lines more in the JSON report" in shown
    assert len(shown) < 40


def test_another_node_shows_the_errors_the_verdict_and_who_has_the_rest():
    findings = tuple(
        Finding(code=code, name="a-b", severity=severity, title=title, confidence=Confidence.PROVED)
        for code, severity, title in (
            ("DD516", Severity.ERROR, "node2 never\nreported in"),
            ("DD227", Severity.INFO, "node1 is slow"),
        )
    )
    stream = io.StringIO()
    report = Report(
        tool=Tool(version="0"),
        run_id="r",
        started_at="",
        duration_s=1.0,
        verdict=Verdict.SICK,
        exit_code=1,
        summary="Sick: node2 never reported in.",
        findings=findings,
    )
    terminal.show_short(
        report, terminal.console(stream), "node0\x1b[2J", saved_as="/runs/recording-node1.json"
    )

    assert stream.getvalue().splitlines() == [
        "",
        "ERROR DD516 node2 never reported in",
        "The full report is the head's, node0?[2J.",
        "Recording: /runs/recording-node1.json",
        "Sick: node2 never reported in.",
    ]
