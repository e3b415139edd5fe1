"""The file to source: what is sure is live, what is not is a comment, and nothing breaks out of its line."""

import subprocess

from ddp_doctor.model.choices import Confidence, Severity, Verdict
from ddp_doctor.model.finding import Finding, Proof, Remedy, Setting
from ddp_doctor.model.report import Report, Tool
from ddp_doctor.render import env_file


def finding(code: str, severity: Severity, *settings: Setting, proof: Proof | None = None) -> Finding:
    remedy = Remedy(summary="mend it", settings=settings, proof=proof or Proof())
    return Finding(
        code=code,
        name="a-fault",
        severity=severity,
        title="A fault",
        confidence=Confidence.POSSIBLE,
        remedies=(remedy,),
    )


def rendered(*findings: Finding) -> str:
    report = Report(
        tool=Tool(version="1"),
        run_id="x",
        started_at="",
        duration_s=0.0,
        verdict=Verdict.HEALTHY,
        exit_code=0,
        summary="",
        findings=findings,
    )
    return env_file.render(report)


def live(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


P2P_OFF = Setting(name="NCCL_P2P_DISABLE", value="1")


def test_a_candidate_of_a_warning_that_was_not_tried_is_a_comment() -> None:
    text = rendered(finding("DD402", Severity.WARNING, P2P_OFF))

    assert "# export NCCL_P2P_DISABLE=1   # a candidate, not tried\n" in text
    assert live(text) == []
    assert text.endswith("# nothing is set; take the # off to try a candidate\n")


def test_a_proved_setting_of_a_warning_is_live() -> None:
    proof = Proof(status="proved", before="1 GB/s", after="5 GB/s")

    text = rendered(finding("DD402", Severity.WARNING, P2P_OFF, proof=proof))

    assert live(text) == ["export NCCL_P2P_DISABLE=1"]


def test_a_setting_of_an_error_is_live_though_a_candidate_before_it_was_not() -> None:
    text = rendered(
        finding("DD402", Severity.WARNING, Setting(name="NCCL_P2P_DISABLE", value="0")),
        finding("DD601", Severity.ERROR, P2P_OFF),
    )

    assert live(text) == ["export NCCL_P2P_DISABLE=1"]


def test_a_leftover_variable_is_unset_but_its_replacement_is_a_candidate() -> None:
    text = rendered(
        finding(
            "DD101",
            Severity.WARNING,
            Setting(name="NCCL_SOCKT_IFNAME", action="unset"),
            Setting(name="NCCL_SOCKET_IFNAME", value="ib0"),
        )
    )

    assert live(text) == ["unset NCCL_SOCKT_IFNAME"]


def test_two_errors_that_want_different_values_show_the_conflict() -> None:
    text = rendered(
        finding("DD601", Severity.ERROR, P2P_OFF),
        finding("DD602", Severity.ERROR, Setting(name="NCCL_P2P_DISABLE", value="0")),
    )

    assert live(text) == ["export NCCL_P2P_DISABLE=1"]
    assert "# DD602 wants another value; conflict, not applied: export NCCL_P2P_DISABLE=0" in text


def test_a_value_with_a_newline_runs_nothing() -> None:
    evil = Setting(name="NCCL_P2P_DISABLE", value="'\necho evil\n'", why="x\necho evil")
    text = rendered(
        finding("DD402", Severity.WARNING, evil),
        finding("DD601", Severity.ERROR, P2P_OFF),
        finding("DD602", Severity.ERROR, evil),
        finding("DD603", Severity.ERROR, Setting(name="X; echo evil", value="1")),
        finding("DD604", Severity.ERROR, Setting(name="NCCL_DEBUG", value="'\necho evil\n'")),
    )

    done = subprocess.run(["sh"], input=text, check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "")
