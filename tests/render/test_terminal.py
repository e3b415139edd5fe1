"""The report for people, with more content than a screen holds."""

import io
import re
import subprocess
from typing import Any

import pytest

from ddp_doctor.model.choices import CheckStatus, Command, Confidence, Detail, Severity, Status, Verdict
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Evidence, Finding, Remedy
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import CheckResult, Measurement, Report, Tool
from ddp_doctor.render import layout, screen, terminal
from ddp_doctor.wording.findings import LOAD
from tests.recordings import judged
from tests.render.reports import Screen


def _shown(recording: Recording | None = None, detail: Detail = Detail.SCREEN, **fields: Any) -> list[str]:
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
    terminal.show(report, recording or Recording(), screen.console(stream, width=100), detail=detail)
    return stream.getvalue().splitlines()


def test_check_skipped_on_one_node_shows_the_reason_next_to_its_mark():
    gpus = CheckResult(id="gpus", title="GPUs", status=CheckStatus.PASSED, reason="on node2: no GPU", duration_s=0.1)

    assert " ok gpus GPUs (0.10 s); skipped on node2: no GPU" in _shown(detail=Detail.ALL, checks=(gpus,))
    assert _shown(checks=(gpus,))[:2] == [" ok node gpus", " -- gpus on node2: no GPU"]


def _untested(name: str, reason: str, status: CheckStatus = CheckStatus.SKIPPED) -> CheckResult:
    return CheckResult(id=name, title=name, status=status, reason=reason, duration_s=0.0)


def test_checks_not_tested_for_one_reason_share_a_line():
    slow, quick = "DD536 makes every step several times longer", "left out by --skip"
    passed = CheckResult(id="allreduce", title="All-reduce", status=CheckStatus.PASSED, duration_s=0.0)
    checks = (
        _untested("gradient_sync", slow),
        _untested("torchrun", quick),
        passed,
        _untested("buffers", slow),
        _untested("p2p", slow),
        _untested("gpus", slow, CheckStatus.FAILED),
    )

    assert _shown(detail=Detail.ALL, checks=checks)[:5] == [
        f" -- gradient_sync, buffers, p2p  skipped: {slow}",
        f" -- torchrun  skipped: {quick}",
        " ok allreduce All-reduce",
        f" ?? gpus      failed: {slow}",
        "    -- skipped, ?? no result",
    ]
    assert _shown(verdict=Verdict.UNSURE, checks=checks)[:5] == [
        " ok collectives allreduce",
        f" -- gradient_sync, buffers, p2p  {slow}",
        f" -- torchrun    {quick}",
        f" ?? gpus        failed: {slow}",
        "    -- skipped, ?? no result (-v shows why)",
    ]


def test_reason_in_the_summary_is_not_repeated():
    recording = Recording(options=Options(command=Command.ENV))
    failed = _untested("env_vars", "no launch line", CheckStatus.FAILED)

    assert _shown(recording, checks=(failed,), verdict=Verdict.UNSURE, summary="Unsure: no launch line.") == [
        "Unsure: no launch line. (1.0 s)"
    ]
    assert " ?? env_vars failed: no launch line" in _shown(recording, checks=(failed,), summary="Unsure.")


def test_absent_hardware_has_a_line_and_unselected_checks_have_none():
    absent = Reading(check="rdma", status=Status.ABSENT, reason="no RDMA device on this machine")
    checks = (
        CheckResult(id="host", title="host", status=CheckStatus.PASSED),
        _untested("rdma", "no RDMA device on this machine"),
        _untested("checkpoint", "needs --level thorough"),
        _untested("step_time", "needs --level thorough"),
        _untested("user_model", "needs a model of yours: --model"),
        _untested("p2p", "not selected by --only"),
    )

    assert _shown(Recording(readings=(absent,)), verdict=Verdict.DEGRADED, checks=checks)[:4] == [
        " ok node host",
        " -- skipped (no hardware)  rdma",
        " -- skipped (needs an option)  checkpoint, step_time (--level thorough), user_model (--model)",
        "    -- skipped (-v shows why)",
    ]


def test_healthy_run_counts_skipped_checks():
    checks = (
        CheckResult(id="host", title="host", status=CheckStatus.PASSED),
        _untested("rdma", "no RDMA device here"),
        _untested("checkpoint", "needs --level thorough"),
        _untested("p2p", "not selected by --only"),
    )

    assert _shown(checks=checks)[:2] == [" ok node host", "    2 checks were skipped; -v lists them"]
    assert _shown(checks=checks[:2])[1] == "    1 check was skipped; -v shows it"
    assert " -- rdma       skipped: no RDMA device here" in _shown(checks=checks, detail=Detail.ALL)


def test_findings_come_before_checks_and_tables():
    checks = (CheckResult(id="host", title="host", status=CheckStatus.FOUND),)
    rates = {"allreduce_time": 1e-3, "allreduce_algbw": 2e9, "allreduce_busbw": 2e9, "allreduce_wrong": 0.0}
    measured = tuple(
        Measurement(name=name, value=value, unit="", labels={"bytes": 1 << 20}) for name, value in rates.items()
    )
    shown = _shown(checks=checks, findings=(_finding(),), measurements=measured)

    assert [line.split()[:2] for line in (shown[0], shown[3], shown[6], shown[-1])] == [
        ["ERROR", "DD000"],
        ["!!", "host"],
        ["all_reduce,", "float32"],
        ["Healthy.", "(1.0"],
    ]


def test_sizes_without_a_rate_have_no_row_unless_no_size_has_one():
    def sizes(*busbw: float) -> list[str]:
        measured = [
            Measurement(name=f"allreduce_{name}", value=value, unit="", labels={"bytes": 4 << 20 * number})
            for number, rate in enumerate(busbw)
            for name, value in (("time", 1e-3), ("algbw", rate), ("busbw", rate), ("wrong", 0.0))
        ]
        return [line.split()[3] for line in _shown(measurements=measured) if line.split()[:1] in (["4"], ["4194304"])]

    assert sizes(4e3, 1.5e9) == ["1.50"]
    assert sizes(4e3, 2.5e6) == ["4e-06", "0.0025"]


def test_check_with_only_a_warning_is_not_red():
    checks = tuple(CheckResult(id=name, title=name, status=CheckStatus.FOUND) for name in ("host", "gpus"))
    findings = (
        _finding(Evidence(check="gpus", text="lost"), code="DD304"),
        _finding(Evidence(check="host", text="few"), code="DD210", severity=Severity.WARNING),
    )
    stream = Screen()
    report = _sick("Unhealthy.", *findings).model_copy(update={"checks": checks})
    terminal.show(report, Recording(), screen.console(stream, width=60))

    assert stream.getvalue().splitlines()[-5:-2] == [
        "\x1b[33m !! \x1b[0mhost DD210",
        "\x1b[1;31m !! \x1b[0mgpus DD304",
        "\x1b[2m    !! see the finding above\x1b[0m",
    ]


def test_brief_output_is_the_findings_and_the_verdict():
    host = CheckResult(id="host", title="host", status=CheckStatus.PASSED)
    assert _shown(detail=Detail.VERDICT, checks=(host,)) == ["Healthy. (1.0 s)"]
    few = _shown(detail=Detail.VERDICT, checks=(host,), findings=(_finding(),))
    assert (few[0], few[-1]) == ("ERROR DD000 Much", "Healthy. (1.0 s)")


#: Reports with every table, of one node or several, healthy and unhealthy.
_WIDE = (
    "gpu_speed/all-h100-at-low-clocks",
    "hang/rank-never-enters",
    "step_time/slow-link-with-own-model",
    "topology/transports-nic-behind-the-host-bridge",
    "user_model/conv-net-with-batch-norm",
)


@pytest.mark.parametrize("width", [20, 60, 80, 120])
@pytest.mark.parametrize("situation", _WIDE)
def test_no_line_is_wider_than_the_terminal_but_long_words(situation: str, width: int):
    outcome, stream = judged(situation), Screen()
    out = screen.console(stream, width=width)
    out.no_color = True
    terminal.show(outcome.report, outcome.recording, out, detail=Detail.ALL)

    for line in re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines():
        is_one_word = len(line.removesuffix(" \\").strip(" -").split()) == 1
        assert len(line) <= width or is_one_word, line


def test_long_reason_is_visibly_truncated():
    shown = _shown(checks=(_untested("gpus", "some words " * 50),))[0]

    assert shown.endswith("some words ...")
    assert len(shown) < 200


def _finding(*evidence: Evidence, **fields: Any) -> Finding:
    given: dict[str, Any] = {"code": "DD000", "name": "a-b", "severity": Severity.ERROR, "title": "Much"}
    return Finding(confidence=Confidence.PROVED, evidence=evidence, **given | fields)


def test_evidence_is_shown_in_units_of_its_size():
    trip = Evidence(
        check="connectivity", text="round trip", value=0.050292, unit="s", expected=2.6e-05, expected_from="peers"
    )
    rate = Evidence(check="connectivity", text="throughput", value=1.18398e7, unit="B/s")

    shown = _shown(findings=(_finding(trip, rate),))

    assert "  - round trip: 50.29 ms (expected 26 us, peers)" in shown
    assert "  - throughput: 11.84 MB/s" in shown


def test_one_rank_has_no_bandwidth_of_all_reduces():
    """A single GPU was once shown with 5,970 GB/s."""
    shares = {"allreduce_time": 45e-6, "allreduce_algbw": 5970e9, "allreduce_busbw": 0.0, "allreduce_wrong": 0.0}
    measured = tuple(
        Measurement(name=name, value=value, unit="", labels={"bytes": 268435456}) for name, value in shares.items()
    )

    shown = _shown(measurements=measured)

    assert " all_reduce: one rank sends nothing, so there is no bandwidth." in shown
    assert not any("5970" in line for line in shown)


def test_evidence_that_every_check_repeats_is_counted():
    same = [Evidence(check=f"check{number}", text="no module named numpy") for number in range(5)]

    assert "  - no module named numpy (5 times)" in _shown(findings=(_finding(*same),))


def _sick(summary: str, *findings: Finding) -> Report:
    return Report(
        tool=Tool(version="0"),
        run_id="r",
        started_at="",
        duration_s=1.0,
        verdict=Verdict.UNHEALTHY,
        exit_code=1,
        summary=summary,
        findings=findings,
    )


def _on_a_terminal(finding: Finding, width: int, summary: str) -> list[str]:
    stream = Screen()
    out = screen.console(stream, width=width)
    out.no_color = True
    terminal.show(_sick(summary, finding), Recording(), out)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).splitlines()


def test_terminal_wraps_prose_between_words_and_commands_as_shell_lines():
    command = "sudo nft insert rule inet filter input ip saddr { 10.77.0.1, 10.77.0.2 } accept   # on node2"
    opened = Remedy(summary="Let the nodes of the job in on all ephemeral ports, everywhere", commands=(command,))
    finding = _finding(
        Evidence(check="connectivity", text="node0 dials node2 at 10.77.0.3:35815: Connection timed out"),
        title="Inbound to node2 is blocked for ephemeral ports",
        remedies=(opened,),
    )

    assert _on_a_terminal(finding, 40, "Unhealthy: Inbound to node2 is blocked for ephemeral ports.") == [
        "ERROR DD000 Inbound to node2 is blocked",
        "for ephemeral ports",
        "  - node0 dials node2 at",
        "    10.77.0.3:35815: Connection timed",
        "    out",
        "  Fix: Let the nodes of the job in on",
        "    all ephemeral ports, everywhere",
        "      # on node2",
        "      sudo nft insert rule inet filter \\",
        "          input ip saddr { 10.77.0.1, \\",
        "          10.77.0.2 } accept",
        "  (proved; more: ddp-doctor explain",
        "  DD000)",
        "",
        "Unhealthy: Inbound to node2 is blocked",
        "for ephemeral ports. (1.0 s)",
    ]


def test_thousands_of_lines_of_evidence_are_cut_and_counted():
    lines = tuple(Evidence(check="p2p", text=f"pair {number}") for number in range(5000))

    shown = _shown(findings=(_finding(*lines),))

    assert "  - pair 23" in shown
    assert "  - and 4976 more lines in the JSON report" in shown
    assert len(shown) < 40


def test_busy_host_is_shown_with_an_affected_time_or_with_v():
    busy = Finding(
        code="DD227",
        name="slow-clock-or-busy-host",
        severity=Severity.INFO,
        title="busy",
        confidence=Confidence.PROVED,
        evidence=(Evidence(check="host", text="busiest: stress (pid 7)", value=8.0, unit=LOAD),),
    )
    clock = busy.model_copy(update={"evidence": (Evidence(check="host", text="hpet"),)})
    slow = _finding(Evidence(check="p2p", text="slow", value=0.1, unit="GB/s"), title="slow")
    wrong = _finding(Evidence(check="p2p", text="wrong", value=3.0, unit="elements"), title="wrong")
    late = CheckResult(id="p2p", title="", status=CheckStatus.TIMED_OUT, reason="no answer")

    def told(*findings: Finding, **more: Any) -> bool:
        return any("DD227" in line for line in _shown(findings=findings, **more))

    assert not told(busy)
    assert not told(busy, wrong)
    assert told(busy, slow)
    assert told(busy, checks=(late,))
    assert told(busy, detail=Detail.ALL)
    assert told(clock)


def test_follower_shows_the_errors_the_verdict_and_the_location_of_the_rest():
    findings = tuple(
        Finding(code=code, name="a-b", severity=severity, title=title, confidence=Confidence.PROVED)
        for code, severity, title in (
            ("DD516", Severity.ERROR, "node2 never\nreported in"),
            ("DD227", Severity.INFO, "node1 is slow"),
        )
    )
    stream = io.StringIO()
    report = _sick("Unhealthy: node2 never reported in.", *findings)
    terminal.show_short(report, screen.console(stream), "node0\x1b[2J", saved_as="/runs/recording-node1.json")

    assert stream.getvalue().splitlines() == [
        "",
        "ERROR DD516 node2 never reported in",
        "The full report is on the head node, node0?[2J.",
        "Recording: /runs/recording-node1.json",
        "Unhealthy: node2 never reported in. (1.0 s)",
    ]


def _rate(name: str, rank: int, value: float, **labels: int) -> Measurement:
    return Measurement(name=name, value=value, unit="", labels={"rank": rank, "node": 0, **labels})


def test_busy_gpus_are_a_table_with_unmeasured_values():
    measured = (
        _rate("matmul_rate", 0, 702.4e12, gpu=4),
        _rate("hbm_copy_bandwidth", 0, 2541e9, gpu=4),
        _rate("pcie_h2d_bandwidth", 0, 55.23e9, gpu=4),
        _rate("pcie_d2h_bandwidth", 0, 54.9e9, gpu=4),
        _rate("pcie_h2d_bandwidth", 1, 24.6e9),
    )

    assert _shown(measurements=measured)[:5] == [
        " Each rank's GPU under load:",
        " rank  GPU     matmul    copy  from host  to host",
        "            (TFLOP/s)  (GB/s)     (GB/s)   (GB/s)",
        "    0    4      702.4  2541.0       55.2     54.9",
        "    1               -       -       24.6        -",
    ]


def test_slowest_of_many_gpus_are_shown():
    measured = tuple(_rate("matmul_rate", rank, (700 - rank % 32) * 1e12) for rank in range(1024))

    lines = _shown(measurements=measured)

    assert lines[0] == " The 8 slowest of 1024 GPUs under load:"
    assert [line.split()[:2] for line in lines[3:5]] == [["31", "669.0"], ["63", "669.0"]]
    assert len(lines) < 16


def test_a_command_that_is_broken_is_still_the_same_to_a_shell():
    text = "printf %s 'two  words' \"$HOME and more\" --an-option=7 {one,two} last"
    for width in (10, 30, 50, 200):
        broken = layout.command(text, width, indent=6)
        whole, read = (
            subprocess.run(("bash", "-c", line), capture_output=True, check=True).stdout for line in (text, broken)
        )
        assert read == whole, broken
