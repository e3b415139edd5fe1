"""Reports on running jobs, from samples of their ranks: the text and values next to the findings.

The findings of each situation are in tests/recordings/attach.
"""

import pytest

from ddp_doctor.app import redaction
from ddp_doctor.app.outcome import judge
from ddp_doctor.features.jobs.attach import AttachReport
from ddp_doctor.model.choices import Verdict
from tests.recordings import SITUATIONS, judged, load

STATES = {
    Verdict.HEALTHY: (0, ("Running: ", "Ended: ")),
    Verdict.UNHEALTHY: (1, ("Stuck: ",)),
    Verdict.UNSURE: (3, ("Cannot tell: ",)),
}


def report_of(situation: str) -> AttachReport:
    report = judged(f"attach/{situation}").report
    assert isinstance(report, AttachReport)
    return report


@pytest.mark.parametrize("situation", [name for name in SITUATIONS if name.startswith("attach/")])
def test_causes_exit_code_and_summary_agree_with_the_findings(situation: str):
    report = report_of(situation.removeprefix("attach/"))

    code, begins = STATES[report.verdict]
    assert (report.exit_code, report.summary.startswith(begins)) == (code, True), report.summary
    assert [(cause.name, cause.culprits) for cause in report.causes] == [
        (finding.name, finding.culprits) for finding in report.findings
    ]
    unread = "Permission denied (publickey)."
    assert (unread in report.summary) == (code == 3 and unread in load(situation).model_dump_json())


@pytest.mark.parametrize(
    ("situation", "said"),
    [
        ("a-rank-that-comes-last-in-three-of-four-looks",
         "Running: Rank 1 (pid 101) is at train.py:9 in 3 of 4 samples, and ranks 0, 2 wait for it"),
        ("a-rank-that-comes-last-in-two-of-four-looks", "Running: 3 of 3 ranks made progress in 4 s"),
        ("a-launcher-at-a-closed-port",
         "Stuck: torchrun (pid 100), node 1 of 2, waits for another node at node0:29500: the port is closed"),
        ("all-ended-during-the-looks-with-code-0", "Ended: 2 ranks exited with code 0 during the observation"),
    ],
)  # fmt: skip
def test_summary_describes_the_state_of_the_job(situation: str, said: str):
    assert report_of(situation).summary == f"{said}."


def test_suggested_command_contains_the_pid_of_the_blamed_rank():
    report = report_of("a-lock")

    [blamed] = [one for one in report.ranks if one.blamed]
    assert report.causes[0].next_check.startswith(f"py-spy dump --pid {blamed.pid} ")
    assert report_of("driver-of-ray-without-workers").causes[0].next_check == "ray status"


def test_processes_without_known_ranks_are_identified_by_pid():
    report = report_of("processes-without-known-ranks")

    assert [one.pid for one in report.ranks if one.blamed] == [101]
    assert "rank 1" not in report.model_dump_json()


def test_gpu_use_of_each_rank_is_in_the_report():
    assert [one.gpu_use for one in report_of("gpus-busy-while-ranks-wait-in-nccl").ranks] == [(100, 100)] * 2 + [()]


def test_each_of_several_jobs_is_evaluated_separately():
    report = report_of("two-jobs-of-which-one-is-stuck")

    assert [(one.job, one.rank, one.moves, one.blamed) for one in report.ranks] == [
        ("j", 0, True, False), ("j", 1, True, False), ("other", 0, False, False), ("other", 1, False, True)
    ]  # fmt: skip


def test_redacted_recording_gives_the_same_finding_without_names():
    before = judged("attach/a-data-loader-whose-worker-sleeps")

    after = judge(redaction.redacted(before.recording))

    assert [finding.name for finding in after.report.findings] == ["data-loader-stuck"]
    text = after.recording.model_dump_json()
    assert "node1" not in text
    assert "/home/me" not in text
    assert "distributed_c10d.py" in text
