"""The cases of a run in continuous integration; tests/test_schemas.py checks them with a published schema."""

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from ddp_doctor.model.choices import CheckStatus, FailOn, Verdict
from ddp_doctor.model.finding import Evidence, Finding
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import CheckResult
from ddp_doctor.render import junit
from tests.render.reports import error, report, warning
from tests.schemas import refused_junit


def of(check: str, finding: Finding) -> Finding:
    return finding.model_copy(update={"evidence": (Evidence(check=check, text=""),)})


def cases(
    *findings: Finding,
    checks: Iterable[tuple[str, CheckStatus]] = (),
    verdict: Verdict = Verdict.HEALTHY,
    fail_on: FailOn = FailOn.ERROR,
) -> dict[str | None, list[tuple[str, str]]]:
    results = (CheckResult(id=name, title="", status=status, reason=f"of {name}") for name, status in checks)
    update = {"checks": tuple(results), "verdict": verdict, "summary": "In a sentence."}
    recording = Recording(run_id="x", options=Options(fail_on=fail_on))
    xml = junit.render(report(*findings).model_copy(update=update), recording)
    assert refused_junit(xml) == []
    return {
        case.get("name"): [(part.tag, part.get("message") or part.text or "") for part in case]
        for case in ET.fromstring(xml)[0]
    }


def test_each_check_is_a_case_that_fails_or_explains_its_missing_result():
    checks = (
        *(("p2p", CheckStatus.FOUND), ("gpus", CheckStatus.PASSED)),
        *(("nccl", CheckStatus.TIMED_OUT), ("rdma", CheckStatus.SKIPPED)),
    )

    shown = cases(of("p2p", error()), of("gpus", warning()), checks=checks, verdict=Verdict.UNHEALTHY)

    assert shown == {
        "p2p": [("failure", "DD601 A fault")],
        "gpus": [("system-out", "warning DD402 A fault\nFix: mend it")],
        "nccl": [("error", "of nccl")],
        "rdma": [("skipped", "of rdma")],
    }


def test_warning_fails_its_case_if_warnings_make_the_verdict_unhealthy():
    checks = (("gpus", CheckStatus.TIMED_OUT),)

    shown = cases(of("gpus", warning()), checks=checks, verdict=Verdict.UNHEALTHY, fail_on=FailOn.WARNING)

    assert shown == {"gpus": [("failure", "DD402 A fault")]}


def test_verdict_without_a_check_has_its_own_case():
    passed = (("gpus", CheckStatus.PASSED),)

    assert cases(checks=passed) == {"gpus": []}
    assert cases(checks=passed, verdict=Verdict.UNSURE) == {"gpus": [], "verdict": [("error", "In a sentence.")]}
    assert cases(error(), checks=passed, verdict=Verdict.UNHEALTHY)["verdict"] == [("failure", "DD601 A fault")]


def test_characters_that_xml_does_not_allow_are_removed():
    foreign = error().model_copy(update={"title": 'GPU <3> & \x1b]\x00\ud800\uffff\n"it\'s"'})

    assert cases(foreign, verdict=Verdict.UNHEALTHY)["verdict"] == [("failure", 'DD601 GPU <3> & ?]???\n"it\'s"')]
