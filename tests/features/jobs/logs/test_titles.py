"""The first finding for outputs that are truncated, wrapped, appended or printed by launchers."""

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
        (
            "step 3\n[rank: 1] Child process with PID 7 terminated with code 1. Forcefully terminating all others",
            f"Rank 1 exited with 1{UNKNOWN}",
        ),
        (
            "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
            "A connection from a node to the rendezvous fails: it did not answer in time",
        ),
        ("['python', 'train.py'] exits with return code = 3", f"A process exited with 3{UNKNOWN}"),
    ],
)
def test_launcher_messages_are_not_mistaken_for_rank_output(output: str, title: str, tmp_path: Path):
    assert titles(output, tmp_path) == [title]


START = "W1123 0{}:30:00.000000 70 run.py:793] Setting OMP_NUM_THREADS environment variable for each process\n"
RAISED = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line {}, in main
[rank0]:     x()
[rank0]: KeyError: '{}'
"""
LAUNCHER_ENDS = f"{FAILED.format(1)}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
CANCELLED = "slurmstepd: error: *** JOB {0} ON n{0} CANCELLED AT 2026-08-21T02:3{0}:05{1} ***\n"
STEPS = "".join(f"step {number} loss 0.{99 - number}\n" for number in range(20))
SYNTAX = '  File "train.py", line {0}\n  File "train.py", line {0}\n    x = = 1\nx = = 1\n      ^\n  ^\n'
AT_ONCE = "SyntaxErrorSyntaxError: : invalid syntaxinvalid syntax"
FILES = "".join(f"upload {number * 7919 % 1000} of {number * 31 % 977}\n" for number in range(900))


@pytest.mark.parametrize(
    ("output", "title", "before"),
    [
        (
            START.format(1)
            + RAISED.format(4, "old")
            + LAUNCHER_ENDS
            + START.format(5)
            + STEPS
            + RAISED.format(9, "new"),
            "Rank 0 stopped in /home/me/train.py:9 in main: KeyError: 'new'",
            "at least 1 earlier run of the job. The run before failed: rank-exception (",
        ),
        (
            "".join(
                START.format(n) + RAISED.format(4, key) + LAUNCHER_ENDS for n, key in zip((3, 5, 6), "aba", strict=True)
            ),
            "Rank 0 stopped in /home/me/train.py:4 in main: KeyError: 'a'",
            "at least 2 earlier runs of the job.",
        ),
        (
            CANCELLED.format(1, "")
            + STEPS
            + CANCELLED.format(2, " DUE TO PREEMPTION")
            + STEPS
            + CANCELLED.format(3, ""),
            "The job was stopped from outside on n3: canceled, or a signal to its launcher",
            "The run before failed: scheduler-preempted (",
        ),
        (
            RAISED.format(4, "old") + FILES + SYNTAX.format(7) + AT_ONCE,
            "A rank stopped in train.py:7 in <module>: SyntaxError: invalid syntax",
            "at least 1 earlier run of the job.",
        ),
        (
            f"{START.format(1)}{RAISED.format(4, 'old')}{LAUNCHER_ENDS}{FILES}{RAISED.format(9, 'new')}",
            "Rank 0 stopped in /home/me/train.py:9 in main: KeyError: 'new'",
            "at least 1 earlier run of the job.",
        ),
        # launchers of two nodes, one after the other and in appended outputs, and an epilog
        (
            START.format(4) + RAISED.format(4, "one") + LAUNCHER_ENDS + START.format(3) + STEPS + LAUNCHER_ENDS,
            "Rank 0 stopped in /home/me/train.py:4 in main: KeyError: 'one'",
            "",
        ),
        (
            START.format(1) * 2 + RAISED.format(4, "one") + LAUNCHER_ENDS * 2,
            "Rank 0 stopped in /home/me/train.py:4 in main: KeyError: 'one'",
            "",
        ),
        (
            START.format(1) + RAISED.format(4, "one") + LAUNCHER_ENDS + FILES,
            "Rank 0 stopped in /home/me/train.py:4 in main: KeyError: 'one'",
            "",
        ),
        (SYNTAX.format(7) + AT_ONCE, "A rank stopped in train.py:7 in <module>: SyntaxError: invalid syntax", ""),
    ],
)
def test_last_of_several_runs_in_one_file_is_explained(output: str, title: str, before: str, tmp_path: Path):
    (tmp_path / "job.out").write_text(output)
    (finding,) = logs([str(tmp_path / "job.out")]).report.findings

    assert finding.title == title
    assert before in finding.detail if before else "earlier run" not in finding.detail


def late(rank: int, seq: int) -> str:
    work = f"WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=8000)"
    return f"[Rank {rank}] Watchdog caught collective operation timeout: {work} ran for 8027 milliseconds\n"


BARRIER = "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key:"
KEYS = "torch.distributed.DistStoreError: wait timeout after 900000ms, keys: /none/torchelastic/role_info/0"
LISTEN = "[c10d] The server socket has failed to listen on [::]:4753 (errno: 98 - Address already in use)."
STOPS = "The end of the job is unknown: the output stops at “{}”"


@pytest.mark.parametrize(
    ("output", "title"),
    [
        (
            f"{BARRIER} store_based_barrier_key:7 (world_size=8, worker_count=5, timeout=0:00:30)",
            f"Only 5 of 8 ranks created process group 7, and the job had started{UNKNOWN}",
        ),
        (
            f"{BARRIER} store_based_barrier_key:1 (world_size=8, worker_count=5, timeout=0:00:30)",
            f"Only 5 of 8 ranks joined the job{UNKNOWN}",
        ),
        (
            f"{BARRIER} store_based_barrier_key:1 (world_size=2, worker_count=6, timeout=0:00:30)",
            "6 ranks joined the store of 2: 3 starts of this job, or another job, share it",
        ),
        (
            f"{BARRIER} store_based_barrier_key:1 (world_size=2, worker_count=3, timeout=0:00:30)",
            "Another job uses the same rendezvous",
        ),
        (KEYS, f"Torchrun waited at its rendezvous for other nodes, which did not come in time{UNKNOWN}"),
        (
            f"torchrun --standalone --nproc_per_node=2 train.py --local_rank 0\n{LISTEN}",
            "Two processes of the job open the same port 4753, which its launcher had chosen as a free one",
        ),
        (LISTEN, "Port 4753 is in use by another program or a leftover job"),
        (
            f"{STEPS}[INFO] [launch.py:328:sigkill_handler] Main process received SIGINT, exiting",
            "The job was interrupted with Ctrl-C (SIGINT)",
        ),
        (
            "[launch.py:328:sigkill_handler] Main process received SIGTERM, exiting",
            "The job was stopped from outside: canceled, or a signal to its launcher",
        ),
        ("ERROR ExecuteUserScriptError:", f"The job failed with “ERROR ExecuteUserScriptError:”{UNKNOWN}"),
        (
            "n1:5:6 [0] NCCL INFO Channel 06/0 : 1[1] -> 0[0] [send] via NET/IB/6/GDRDMA",
            STOPS.format("NCCL INFO Channel 06/0: 1[1] -> 0[0] [send] via NET/IB/6/GDRDMA"),
        ),
        (
            "Warning: strides differ. This is not an error, but may be slow.\nsizes() = [2, 3]",
            STOPS.format("sizes() = [2, 3]"),
        ),
        (
            "".join(f"Filter: {n}%|#| {n}/100 [00:01<00:00, 9.{n} examples/s]\n" for n in (50, 75, 100)) + "loading",
            STOPS.format("loading"),
        ),
        (
            "error: subprocess-exited-with-error\n  x python setup.py bdist_wheel did not run successfully.",
            "The end of the job is unknown: pip could not build a package, and this is not the output of a job",
        ),
    ],
)
def test_counts_stops_and_harmless_lines_are_understood(output: str, title: str, tmp_path: Path):
    assert titles(output, tmp_path) == [title]


@pytest.mark.parametrize(
    ("output", "detail"),
    [
        (late(0, 59) + late(1, 61), "Their numbers differ by 2: the ranks called different collectives, or"),
        (late(0, 62) + late(0, 60) + late(1, 60), "59 collectives had worked before"),
        (f"uploading the model\n{late(0, 59)}", "The last line before the timeout is “uploading the model”."),
        (f"[rank0]: Traceback\n{late(0, 59)}", "58 collectives had worked before, so code,"),
    ],
)
def test_detail_of_a_timeout_shows_how_far_the_ranks_got(output: str, detail: str, tmp_path: Path):
    (tmp_path / "job.out").write_text(output)

    assert logs([str(tmp_path / "job.out")]).report.findings[0].detail.startswith(detail)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import torch\n\n\ndef main():\n    torch.fail()\n", "Python source"),
        ('{\n  "train": {"batch": 8},\n  "error": "no"\n}\n', "JSON"),
        ("# Name\n\n## Errors\n\n```\nfailed\n```\n", "Markdown"),
    ],
)
def test_file_that_is_not_job_output_is_reported_with_its_kind(text: str, kind: str, tmp_path: Path):
    (title,) = titles(text, tmp_path)

    assert title.endswith(f"job.out is {kind}, and this is not the output of a job")
