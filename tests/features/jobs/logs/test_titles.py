"""What the first finding says of outputs that are cut, wrapped, appended or printed by launchers."""

from pathlib import Path

import pytest

from ddp_doctor.features.jobs.logs.use_case import logs

UNKNOWN = ": the cause is unknown"
FRAME = '  File "/opt/env/lib/python3.12/site-packages/torch/distributed/launcher/api.py", line 12, in launch_agent\n'
CUT = f"Traceback (most recent call last):\n{FRAME}    raise ChildFailedError(\ntorch.distributed.elastic.mul"
SUMMARY = """  time      : 2026-11-23_04:{}
  host      : {}
  rank      : {} (local_rank: 0)
  exitcode  : {} (pid: 7)
  error_file: <N/A>
  traceback : To enable traceback see: https://docs
"""
FAILED = "E1123 04:31:09.690000 7 torch/distributed/elastic/api.py:86] failed (exitcode: {}) local_rank: 2 (pid: 9)\n"


def titles(output: str, folder: Path) -> list[str]:
    (folder / "job.out").write_text(output + "\n")
    return [finding.title for finding in logs([str(folder / "job.out")]).report.findings]


@pytest.mark.parametrize(
    ("output", "title"),
    [
        (FAILED.format(-9) + CUT, "Local rank 2 was killed by SIGKILL"),
        (FAILED.format(-11) + CUT, "Local rank 2 crashed with SIGSEGV in a native library, not in Python code"),
        (FAILED.format(1) + CUT, f"Local rank 2 exited with 1{UNKNOWN}"),
        (FAILED.format(1) + CUT.replace(".mul", ".Chil"), f"Local rank 2 exited with 1{UNKNOWN}"),
        (
            SUMMARY.format("31:50", "n0", 0, 1) + "\n" + SUMMARY.format("31:08", "n1", 4, 1),
            f"Rank 0 (n0) and rank 4 (n1) exited with 1; rank 4 failed first, 42 s before the others{UNKNOWN}",
        ),
        (
            "traceback : Signal 11 (SIGSEGV) received by PID 71",
            "A rank crashed with SIGSEGV in a native library, not in Python code",
        ),
        ("['python', 'train.py'] exits with return code = 3", f"A process exited with 3{UNKNOWN}"),
    ],
)
def test_words_of_launchers_are_no_words_of_ranks(output: str, title: str, tmp_path: Path):
    assert titles(output, tmp_path) == [title]
