"""torchrun: a rank that is killed before its first line is reported from torchrun's own summary."""

import pytest

from ddp_doctor.app.outcome import judge
from ddp_doctor.checks.cluster.torchrun import CHECK
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import TrialRecord
from tests.readings import findings_of, plain_world
from tests.recordings import load

FIRST = """Failures:
[1]:
  time      : 2026-11-30_00:56:04
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 28320)  (SIGTERM)
  traceback : Signal 15 (SIGTERM) received by PID 28320
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_00:56:04
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 28319)  (SIGKILL)
  error_file: <N/A>
"""


def failed(output: str) -> TrialRecord:
    what = {"trial": "torchrun", "checks": ("torchrun",), "ranks": (0, 1), "launcher": "torchrun", "outcome": "broken"}
    return TrialRecord.model_validate(what | {"notes": ("torchrun ended with exit code 1", output)})


@pytest.mark.parametrize(
    ("output", "title"),
    [
        (FIRST, "Rank 0 was killed by SIGKILL right after torchrun started it"),
        (FIRST.replace("-9", "-11").replace("SIGKILL", "SIGSEGV"), "Rank 0 was killed by SIGSEGV right after torchrun"),
        (FIRST.replace("-9 (pid: 28319)  (SIGKILL)", "1 (pid: 28319)"), "torchrun started none of its 2 ranks"),
        ("connection refused", "torchrun started none of its 2 ranks"),
    ],
)
def test_rank_killed_before_its_first_line_is_reported_as_killed(output: str, title: str):
    recording = Recording(world=plain_world(1, 2, "gloo"), trials=(failed(output),))
    found = [finding for finding in findings_of(CHECK, recording) if finding.code == "DD501"]
    assert [finding.title.startswith(title) for finding in found] == [True]
    assert [culprit.rank for culprit in found[0].culprits] == ([0] if "killed" in title else [])


def test_torch_that_cannot_be_imported_is_one_finding():
    broken = load("process_group/torch-import-raises")
    trial = failed("ImportError: libtorch_cpu.so: cannot open shared object file")
    report = judge(broken.model_copy(update={"trials": (*broken.trials, trial)})).report
    assert [finding.code for finding in report.findings] == ["DD603"]
