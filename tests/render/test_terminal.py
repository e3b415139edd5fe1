"""The report for people, where there is more to tell than a screen holds."""

import io
import re
from typing import Any

from ddp_doctor.model.choices import CheckStatus, Confidence, Severity, Verdict
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Evidence, Finding, Remedy
from ddp_doctor.model.report import CheckResult, Measurement, Report, Tool
from ddp_doctor.render import screen, terminal


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
    terminal.show(report, screen.console(stream, width=100))
    return stream.getvalue().splitlines()


def test_a_check_that_could_not_look_on_one_node_says_so_beside_its_mark():
    gpus = CheckResult(
        id="gpus", title="GPUs", status=CheckStatus.PASSED, reason="on node2: no GPU", duration_s=0.1
    )

    assert " ok gpus            GPUs (0.10 s); not tested on node2: no GPU" in _shown(checks=(gpus,))


def _untested(name: str, reason: str, status: CheckStatus = CheckStatus.SKIPPED) -> CheckResult:
    return CheckResult(id=name, title=name, status=status, reason=reason, duration_s=0.0)


def test_checks_not_tested_for_one_reason_share_a_line():
    slow, quick = "DD536 makes every step several times longer", "belongs to level standard"
    passed = CheckResult(id="allreduce", title="All-reduce", status=CheckStatus.PASSED, duration_s=0.0)
    checks = (
        _untested("gradient_sync", slow),
        _untested("torchrun", quick),
        passed,
        _untested("buffers", slow),
        _untested("p2p", slow),
        _untested("gpus", slow, CheckStatus.FAILED),
    )

    assert _shown(checks=checks)[1:5] == [
        f" -- gradient_sync, buffers, p2p  not tested: {slow}",
        f" -- torchrun        not tested: {quick}",
        " ok allreduce       All-reduce",
        f" ?? gpus            failed: {slow}",
    ]


def test_a_long_reason_is_cut_where_it_can_be_seen():
    shown = _shown(checks=(_untested("gpus", "x" * 500),))[1]

    assert shown.endswith("xxx...")
    assert len(shown) < 200


def _finding(*evidence: Evidence, **fields: Any) -> Finding:
    given: dict[str, Any] = {"code": "DD000", "name": "a-b", "severity": Severity.ERROR, "title": "Much"}
    return Finding(confidence=Confidence.PROVED, evidence=evidence, **given | fields)


def test_evidence_stands_in_units_of_its_size():
    trip = Evidence(
        check="connectivity",
        text="round trip",
        value=0.050292,
        unit="s",
        expected=2.6e-05,
        expected_from="peers",
    )
    rate = Evidence(check="connectivity", text="throughput", value=1.18398e7, unit="B/s")

    shown = _shown(findings=(_finding(trip, rate),))

    assert "  - round trip: 50.29 ms (expected 26 us, peers)" in shown
    assert "  - throughput: 11.84 MB/s" in shown


def test_an_expectation_is_told_once_for_all_lines_that_share_it():
    lines = [
        Evidence(check="connectivity", text=f"to node{node}", value=9, expected=0, expected_from="peers")
        for node in (0, 1)
    ]
    shown = _shown(
        findings=(_finding(*lines, Evidence(check="connectivity", text="to node2", expected_from="x")),)
    )

    assert [line for line in shown if line.startswith("  - ")] == [
        "  - to node0: 9 (expected 0, peers)",
        "  - to node1: 9",
        "  - to node2 (x)",
    ]


def test_evidence_that_every_check_repeats_is_counted():
    same = [Evidence(check=f"check{number}", text="no module named numpy") for number in range(5)]

    assert "  - no module named numpy (5 times)" in _shown(findings=(_finding(*same),))


def test_a_remedy_that_changes_nothing_has_no_line_on_how_to_undo_it():
    looks = Remedy(summary="Look", cost="none: it only looks", undo=NOTHING_TO_UNDO)

    shown = _shown(findings=(_finding(remedies=(looks,)),))

    assert "    Cost: none: it only looks" in shown
    assert not any("Undo" in line for line in shown)


def _sick(summary: str, *findings: Finding) -> Report:
    return Report(
        tool=Tool(version="0"),
        run_id="r",
        started_at="",
        duration_s=1.0,
        verdict=Verdict.SICK,
        exit_code=1,
        summary=summary,
        findings=findings,
    )


def _on_a_terminal(finding: Finding, width: int, summary: str) -> list[str]:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Screen()
    out = screen.console(stream, width=width)
    out.no_color = True
    terminal.show(_sick(summary, finding), out)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()


def test_a_terminal_breaks_prose_between_words_and_never_a_command():
    command = "sudo nft insert rule inet filter input ip saddr { 10.77.0.1, 10.77.0.2 } accept   # on node2"
    opened = Remedy(
        summary="Let the nodes of the job in on all ephemeral ports, everywhere", commands=(command,)
    )
    finding = _finding(
        Evidence(check="connectivity", text="node0 dials node2 at 10.77.0.3:35815: Connection timed out"),
        title="Inbound to node2 is blocked for ephemeral ports",
        remedies=(opened,),
    )

    assert _on_a_terminal(finding, 40, "Sick: Inbound to node2 is blocked for ephemeral ports.")[2:] == [
        "ERROR DD000 Inbound to node2 is blocked ",
        "for ephemeral ports",
        "  - node0 dials node2 at",
        "    10.77.0.3:35815: Connection timed",
        "    out",
        "  Remedy: Let the nodes of the job in on",
        "    all ephemeral ports, everywhere",
        f"      {command}",
        "  (proved; more: ddp-doctor explain",
        "  DD000)",
        "",
        "Sick: Inbound to node2 is blocked for ",
        "ephemeral ports.",
    ]


def test_a_file_has_each_sentence_on_one_line():
    finding = _finding(Evidence(check="connectivity", text="word " * 60), title="long " * 60)

    assert max(map(len, _shown(findings=(finding,)))) > 250


def test_thousands_of_lines_of_evidence_are_cut_and_counted():
    lines = tuple(Evidence(check="p2p", text=f"pair {number}") for number in range(5000))

    shown = _shown(findings=(_finding(*lines),))

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
    report = _sick("Sick: node2 never reported in.", *findings)
    terminal.show_short(report, screen.console(stream), "node0\x1b[2J", saved_as="/runs/recording-node1.json")

    assert stream.getvalue().splitlines() == [
        "",
        "ERROR DD516 node2 never reported in",
        "The full report is the head's, node0?[2J.",
        "Recording: /runs/recording-node1.json",
        "Sick: node2 never reported in.",
    ]


def _rate(name: str, rank: int, value: float, **labels: int) -> Measurement:
    return Measurement(name=name, value=value, unit="", labels={"rank": rank, "node": 0, **labels})


def test_the_gpus_at_work_stand_in_a_table_with_what_was_not_measured():
    measured = (
        _rate("matmul_rate", 0, 702.4e12, gpu=4),
        _rate("hbm_copy_bandwidth", 0, 2541e9, gpu=4),
        _rate("pcie_h2d_bandwidth", 0, 55.23e9, gpu=4),
        _rate("pcie_d2h_bandwidth", 0, 54.9e9, gpu=4),
        _rate("pcie_h2d_bandwidth", 1, 24.6e9),
    )

    assert _shown(measurements=measured)[2:6] == [
        "   rank  GPU     matmul     copy  from host  to host",
        "              (TFLOP/s)   (GB/s)     (GB/s)   (GB/s)          each rank's GPU at work",
        "      0    4      702.4   2541.0       55.2     54.9",
        "      1               -        -       24.6        -",
    ]


def test_of_many_gpus_the_slowest_are_shown():
    measured = tuple(_rate("matmul_rate", rank, (700 - rank % 32) * 1e12) for rank in range(1024))

    lines = _shown(measurements=measured)

    assert "the 8 slowest of 1024" in lines[3]
    assert [line.split()[:2] for line in lines[4:6]] == [["31", "669.0"], ["63", "669.0"]]
    assert len(lines) < 16
