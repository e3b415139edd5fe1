"""Repeated failures: a job that fails each time it is started has failed, and a job that recovered has not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_doctor.features.jobs.facts import JobLogFact
from ddp_doctor.features.jobs.logs import use_case as job_reading
from ddp_doctor.features.jobs.logs.use_case import logs
from ddp_doctor.features.jobs.reading import words
from ddp_doctor.features.jobs.reading.scan import ALL_WORDS, FileScan
from ddp_doctor.model.report import LogsReport

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 31, in <module>
    main()
  File "/home/me/train.py", line 17, in main
    batch = next(it)
ValueError: bad shape {}
"""
NCCL_ERROR = "[rank0]: RuntimeError: NCCL error\n"
SHM = (
    "n1:7:9 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-A to 9 bytes:"
    " No space left on device\n"
)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\n"
ENDED = (
    "E1123 04:31:09.690000 7067 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)"
    " local_rank: 0 (pid: 7) of binary: /usr/bin/python\n"
)
RESTART = (
    "I1123 04:31:09.690000 70 torch/distributed/elastic/agent/server/api.py:900] Worker group FAILED."
    " {} attempts left; will restart worker group\n"
)
COPIES = (1, 14, 100, pytest.param(10_000, marks=pytest.mark.fuzz))
#: The result for output whose steps continue to its last line: it does not show the end.
GOES_ON = (3, ["end-not-shown"])


def steps(number: int, prefix: str = "") -> str:
    return "".join(f"{prefix}step {step} loss {1 / (step + 1):.4f}\n" for step in range(number))


def of_ranks(text: str, ranks: int) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for rank in range(ranks) for line in text.splitlines())


def judged(folder: Path, *texts: str) -> tuple[int, list[str], str]:
    for number, text in enumerate(texts):
        (folder / f"rank_{number}.log").write_text(text)
    report = logs([str(folder / f"rank_{number}.log") for number in range(len(texts))]).report
    assert isinstance(report, LogsReport)
    return report.exit_code, [cause.name for cause in report.causes], report.summary


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize(
    ("once", "cause"),
    [
        (TRACEBACK.format(""), "rank-exception"),
        ("+ python train.py\nloading\n" + TRACEBACK.format("") + "restarting in 5 s\n", "rank-exception"),
        (of_ranks(TRACEBACK.format(""), 4), "rank-exception"),
        (of_ranks(TRACEBACK.format(""), 1) + ENDED, "rank-exception"),
        (NCCL_ERROR, "job-failed-cause-not-proven"),
        ("starting\n" + OUT_OF_MEMORY, "gpu-out-of-memory"),
        (SHM, "shm-too-small"),
        ("step 1\nKilled\nrestarting\n", "host-oom-kill"),
        ("python train.py\nmake: *** [train] Error 1\n", "job-failed-cause-not-proven"),
    ],
    ids=["traceback", "shell loop", "4 ranks", "torchrun", "no cause", "memory", "NCCL", "killed", "make"],
)
def test_job_that_fails_every_time_has_failed(once: str, cause: str, copies: int, tmp_path: Path):
    assert judged(tmp_path, once * copies)[1] == [cause]


@pytest.mark.parametrize("most", [10, 5_000])
def test_many_different_failures_have_one_cause(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ddp_doctor.features.jobs.reading.scan._MOST_OF_A_SIGN", most)
    monkeypatch.setattr("ddp_doctor.features.jobs.reading.assemble._MOST_SIGNS", most)
    text = "".join(f"run {number}\n{TRACEBACK.format(number)}" for number in range(100))

    assert judged(tmp_path, text)[1] == ["rank-exception"]


@pytest.mark.parametrize("copies", COPIES[1:])
@pytest.mark.parametrize(
    "once", [TRACEBACK.format(""), "run\n" + TRACEBACK.format(""), "step 1\nKilled\nrestarting\n", NCCL_ERROR]
)
def test_job_that_continues_after_many_failures_has_not_failed(once: str, copies: int, tmp_path: Path):
    assert judged(tmp_path, once * copies + steps(30))[:2] == GOES_ON


def test_last_attempt_of_torchrun_counts_even_if_all_print_the_same(tmp_path: Path):
    once = of_ranks(TRACEBACK.format(""), 1) + ENDED
    attempts = "".join(once + RESTART.format(left) for left in (3, 2, 1))

    assert judged(tmp_path, attempts + once)[1] == ["rank-exception"]
    assert judged(tmp_path, attempts + steps(60))[:2] == GOES_ON


def test_rank_that_ends_with_an_error_that_another_rank_survived_has_failed(tmp_path: Path):
    code, causes, summary = judged(tmp_path, TRACEBACK.format("") + steps(200), steps(200) + TRACEBACK.format(""))

    assert (code, causes) == (1, ["rank-exception"])
    assert judged(tmp_path, *[TRACEBACK.format("") + steps(200)] * 2)[:2] == GOES_ON
    assert "Failed" in summary


#: After these, a part of the job is gone, whatever follows.
LAUNCHERS = ("srun: error: node1: task 3: Exited with exit code 1", "container exited with code 137")
TAILS = """Killed
train.sh: line 3:  4711 Killed                  python train.py
[1]+  Killed                  python train.py
zsh: killed     python train.py
Segmentation fault
./run.sh: line 2:    15 Segmentation fault      (core dumped) python train.py
Aborted (core dumped)
Floating point exception
make: *** [train] Error 1
make[1]: *** [Makefile:4: train] Killed
ninja: build stopped: subcommand failed.
error: command exited with exit code 1
error: Recipe `train` failed on line 3 with exit code 2
npm ERR! Exit status 1
exit status 1
[1]+  Exit 1                  python train.py
Process exited with code 1
##[error]Process completed with exit code 1.
command terminated with exit code 1
container exited with code 137
train.service: Main process exited, code=killed, status=9/KILL
train.service: Failed with result 'exit-code'.
srun: error: node1: task 3: Exited with exit code 1
subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1."""


@pytest.mark.parametrize("tail", TAILS.splitlines())
def test_output_that_ends_with_a_failed_command_is_an_unproven_failure(tail: str, tmp_path: Path):
    code, causes, summary = judged(tmp_path, steps(60) + tail + "\n\n")

    assert code == 3
    assert len(causes) == 1
    assert summary.startswith("Failed, cause not proven: ")
    assert (judged(tmp_path, f"{tail}\n{steps(400)}")[:2] != GOES_ON) is (tail in LAUNCHERS)


@pytest.mark.parametrize(
    "tail",
    [
        "Terminated",
        "run.sh: line 9:  4712 Terminated              nvidia-smi dmon > gpu.log",
        "[1]+  Terminated              ./monitor.sh",
        "run.sh: line 9:  4712 Killed                  nvidia-smi dmon > gpu.log",
        "[1]+  Killed                  ./monitor.sh",
        "monitor exited with code 143",
        "Process completed with exit code 0.",
        "wandb: upload finished with status 200",
        "make: Nothing to be done for 'train'.",
    ],
)
def test_exit_of_another_program_does_not_fail_a_finished_job(tail: str, tmp_path: Path):
    assert judged(tmp_path, steps(60) + f"training finished\n{tail}\n")[:2] == (0, [])


@pytest.mark.parametrize(
    "stack",
    [
        "frame #7: c10d::work() + 0x1f (0x7f3e5c in /v/torch/lib/libtorch_cuda.so)\n",
        '  File "/v/torch/x.py", line 7 in f\n',
        "#12 0x00007f3e5c in clone () from /lib/libc.so.6\n",
    ],
)
def test_stack_frames_after_a_failure_are_not_progress(stack: str, tmp_path: Path):
    assert judged(tmp_path, steps(60) + NCCL_ERROR + stack * 90)[0] == 3


LINES = {
    "nothing": "step 5: loss 2.1\n",
    "error": NCCL_ERROR,
    "warning": SHM,
    "end": ENDED,
    "traceback": TRACEBACK,
    "short": "loss is nan\n",
    "bar": "10%|#| 1/9 loss is nan\r",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_repeated_lines_are_all_counted_but_few_are_parsed(line: str, monkeypatch: pytest.MonkeyPatch):
    copies = 1_000_000 // len(line)
    read: list[int] = []
    take = FileScan._text

    def counted(self: FileScan, text: str, number: int, found: set[int]) -> None:
        read.append(number)
        take(self, text, number, found)

    monkeypatch.setattr(FileScan, "_text", counted)
    scan, search = FileScan("job.out", 2026), words.search_for(ALL_WORDS)
    for data in ((line * copies).encode(), b"the end\n"):
        scan.feed(data, search(data))
    scan.end()

    assert len(read) < 2_000
    assert scan.lines == copies * line.count("\n") + 1
    for seen in scan.seen.values():
        if "\r" not in line:
            assert seen.times == copies
            assert seen.last_line > scan.lines - 1 - 2 * line.count("\n")


def _numbered() -> Iterator[str]:
    for number in range(700):
        yield f"line {number}\n" if number % 5 else TRACEBACK.format(number % 3)


@pytest.mark.parametrize("size", [999, 10_000, pytest.param(1 << 20, marks=pytest.mark.fuzz)])
def test_skipping_repeated_lines_does_not_change_the_facts(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parts = ["".join(_numbered()), (TRACEBACK.format("") + "again\n") * 900, SHM * 3_000, "".join(_numbered())]
    (tmp_path / "job.out").write_text("".join(parts))
    monkeypatch.setattr("ddp_doctor.sources.job_files.CHUNK_BYTES", size)
    read = [JobLogFact.model_validate(job_reading.read_job([str(tmp_path / "job.out")])[0].fact)]
    monkeypatch.setattr("ddp_doctor.features.jobs.reading.scan._READ_LINES", 10**9)
    read.append(JobLogFact.model_validate(job_reading.read_job([str(tmp_path / "job.out")])[0].fact))

    assert read[0] == read[1]
