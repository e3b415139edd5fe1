"""Outputs of failed jobs: each cause is named in the samples below "Named" of its document, and in no other sample."""

from pathlib import Path

import pytest

from ddp_doctor.engine.diagnose import all_rules
from ddp_doctor.features.jobs.logs.use_case import logs
from ddp_doctor.features.jobs.table import JOB_CAUSES, SIGNS, hangs
from ddp_doctor.features.lint.rules import RULES as LINT_RULES
from ddp_doctor.model.report import LogsReport
from tests.features.jobs.logs.documents import FOLDER, SAMPLES, Sample


def judged(sample: Sample, folder: Path) -> LogsReport:
    for name, text in sample.files.items():
        (folder / name).write_text(text)
    report = logs([str(folder / name) for name in sample.files]).report
    assert isinstance(report, LogsReport)
    return report


@pytest.mark.parametrize("document", [path.stem for path in sorted(FOLDER.glob("*.md"))])
def test_cause_is_reported_only_for_samples_that_show_it(document: str, tmp_path: Path):
    for number, sample in enumerate(sample for sample in SAMPLES if sample.cause == document):
        (tmp_path / str(number)).mkdir()
        report = judged(sample, tmp_path / str(number))
        named = {cause.name: cause.confidence.value for cause in report.causes}
        who = {
            f"{culprit.kind} {culprit.name or culprit.node if culprit.rank is None else culprit.rank}"
            for finding in report.findings
            for culprit in finding.culprits
        }
        assert (document in named) is not sample.silent, str(sample)
        for expected in sample.expected:
            assert expected in ({*named, *(who or {"nobody"}), named.get(document)} if named else {"nothing"}), str(
                sample
            )
        if not sample.silent and not any(e in {cause.name for cause in JOB_CAUSES} for e in sample.expected):
            assert set(named) == {document}, str(sample)


def test_every_cause_has_a_document_with_named_and_silent_samples():
    elsewhere = set(hangs.CAUSES)  # test_wait_graph.py, test_live.py
    for cause in (cause for cause in JOB_CAUSES if cause.code not in elsewhere):
        title = (FOLDER / f"{cause.name}.md").read_text(encoding="utf-8").splitlines()[0]
        assert title == f"# {cause.code} {cause.name}"
        assert {sample.silent for sample in SAMPLES if sample.cause == cause.name} == {False, True}, cause.name


def test_rules_listed_as_finding_a_cause_exist():
    known = {rule.code for rule in (*all_rules(), *LINT_RULES)}

    assert {code for cause in JOB_CAUSES for code in cause.found_by} - known == set()


def test_signs_have_unique_ids_and_searchable_words():
    ids = [name for cause in JOB_CAUSES for name in cause.signs]

    assert len(SIGNS) >= len({*ids}) == len(ids)
    assert [
        sign.id
        for sign, _ in SIGNS.values()
        if not sign.words or not all(len(w) >= 5 and w.isascii() for w in sign.words)
    ] == []


CLOSED = "[rank{}]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:9445"
GLOO = "[rank0]: RuntimeError: [unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"
ENDED = "E1123 04:31:09.690000 7067 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)"

SUMMARY = """[1]:
  time      : 2026-11-29_17:19:38
  host      : node1
  rank      : {rank} (local_rank: {local})
  exitcode  : {exitcode} (pid: {pid})
  error_file: <N/A>"""


@pytest.mark.parametrize(
    ("lines", "title"),
    [
        ([CLOSED.format(0), "[rank1]: step 3"], "Rank 1 exited without a message: rank 0 lost the connection"),
        (
            [CLOSED.format(0), CLOSED.format(2), "[rank1]: step 3", "[rank3]: step 3"],
            "A rank exited without a message: rank 0 and rank 2 lost the connection",
        ),
        (
            [
                CLOSED.format(0),
                "W1129 17:19:38.656000 7067 elastic/api.py:1028] Sending process 71 closing signal SIGTERM",
                *SUMMARY.format(rank=1, local=1, exitcode=-15, pid=71).splitlines(),
                *SUMMARY.format(rank=0, local=0, exitcode=1, pid=70).splitlines(),
            ],
            "A rank exited without a message: rank 0 (node1) lost the connection",
        ),
        ([GLOO, f"{ENDED} local_rank: 0 (pid: 7)"], "A collective timed out on rank 0: the cause is unknown"),
    ],
)
def test_title_of_an_unproven_failure_shows_the_observing_ranks(lines: list[str], title: str, tmp_path: Path):
    traceback = "[rank0]: Traceback (most recent call last):"
    (tmp_path / "job.out").write_text("\n".join([traceback, *lines, ENDED]) + "\n")

    report = logs([str(tmp_path / "job.out")]).report

    assert [finding.title for finding in report.findings] == [title]


RAISED = """Traceback (most recent call last):
  File "/home/me/train.py", line 24, in main
    big = torch.zeros(1 << 44)
  File "/opt/venv/lib/python3.11/site-packages/numpy/_core/numeric.py", line 191, in ones
    a = empty(shape, dtype, order)
"""
WAITED = "[rank{}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
UNKNOWN = ": the cause is unknown"
PYXIS = """pyxis: imported docker image: docker://me/image:1
slurmstepd: error: pyxis: container start failed with error code: 1
slurmstepd: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1"""
TIME_LIMIT = "slurmstepd: error: *** STEP 4.2 ON n1 CANCELLED AT 2025-12-03T14:53:02 DUE TO TIME LIMIT ***"
LAST_ERROR = """[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, internal error
[rank0]: Last error:
"""
IN_DISTRIBUTED = r"""  File "C:\torch\distributed\rendezvous.py", line 185, in _create
    return TCPStore(
RuntimeError: no libuv
"""
LAUNCHER = """Traceback (most recent call last):
  File "/opt/env/bin/accelerate", line 8, in <module>
    sys.exit(main())
  File "/opt/env/lib/python3.11/site-packages/accelerate/commands/launch.py", line 1205, in _validate_launch_command
    raise ValueError(
ValueError: You can only use one of `--cpu`, `--multi_gpu` at a time.
"""
CHAINED = """-- Process 3 terminated with the following error:
Traceback (most recent call last):
  File "/home/me/trainer.py", line 20, in check
    + "-" * 80
FloatingPointError: gradients are inconsistent

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/me/main.py", line 7, in main
"""
ENDED_BY_SPAWN = """Traceback (most recent call last):
  File "/home/me/train.py", line 213, in main
    mp.spawn(worker, nprocs=4)
  File "/opt/env/lib/python3.6/site-packages/torch/multiprocessing/spawn.py", line 107, in join
    (error_index, name)
Exception: process 3 terminated with signal SIGKILL
"""
NO_GRADIENT = """[rank0]: RuntimeError: Expected to have finished reduction in the prior iteration before starting it.
[rank0]: making sure all `forward` function outputs participate in calculating loss.
[rank0]: Parameter indices which did not receive grad for rank 3: 444 445
"""
HOROVOD = """[1,0]<stderr>:[W stall_inspector.cc:107] One or more tensors were broadcasted by subset of ranks.
[1,0]<stderr>:Stalled ranks:
[1,0]<stderr>:6: [horovod_allreduce.0, horovod_allreduce.1 ...]
"""
SHARED_GPU = "".join(
    f"[1,{rank}]<stdout>:node3:8{rank}:9{rank} [0] init.cc:497 NCCL WARN Duplicate GPU detected :"
    f" rank {rank} and rank {peer} both on CUDA device {bus}\n"
    for rank, peer, bus in ((2, 0, 1000), (5, 0, 1000), (7, 6, 2000))
)


@pytest.mark.parametrize(
    ("output", "title"),
    [
        (
            "[E ProcessGroupNCCL.cpp:916] [Rank 1] CUDA error: uncorrectable ECC error encountered",
            "GPU of rank 1 has an uncorrectable memory error",
        ),
        (NO_GRADIENT, "Model parameters get no gradient on rank 0 (parameter indices 444 445)"),
        (
            NO_GRADIENT.replace("[rank0]: ", ""),
            "Model parameters get no gradient on rank 3 (parameter indices 444 445)",
        ),
        (HOROVOD, "Rank 6 never entered a collective"),
        (HOROVOD.replace("[1,0]<stderr>:", ""), "Rank 6 never entered a collective"),
        (SHARED_GPU, "Ranks 0, 2, 5 of one node use the same GPU, 1000"),
        (
            "(raylet) 1 Workers killed due to memory pressure (OOM), 0 crashed at node (ID: 3, IP: 10.95.143.76)",
            "Host memory ran out on 10.95.143.76, and a process of the job was killed",
        ),
        (ENDED_BY_SPAWN, "Local rank 3 was killed by SIGKILL"),
        (LAUNCHER, "The arguments were rejected: You can only use one of `--cpu`, `--multi_gpu` at a time."),
        (
            CHAINED,
            "Local rank 3 stopped in /home/me/trainer.py:20 in check: FloatingPointError: gradients are inconsistent",
        ),
        (
            IN_DISTRIBUTED,
            r"A rank stopped in C:\torch\distributed\rendezvous.py:185 in _create: RuntimeError: no libuv",
        ),
        (
            "node1:8:9 [0] include/socket.h:390 NCCL WARN Connect to 10.38.10.112<21724> failed : Connection refused",
            "node1 could not connect to 10.38.10.112:21724, where nothing listens",
        ),
        (
            "host3: Test NCCL failure common.cu:1125 'system error'\n .. host3 pid 35: Test failure common.cu:1017",
            "The job failed with “host3: Test NCCL failure common.cu:1125 'system error'”: the cause is unknown",
        ),
        (PYXIS, f"The output ends with “slurmstepd: error: pyxis: container start failed with error code: 1”{UNKNOWN}"),
        (
            f"{WAITED.format(1)}\n{WAITED.format(2)}\n{WAITED.format(3)}",
            "A collective timed out on ranks 1-3: the cause is unknown",
        ),
        (
            "Waiting in store based barrier to initialize for rank: 0 (world_size=7, worker_count=1, timeout=0:30:00)",
            "The job was still starting, or hangs during start: only 1 of 7 ranks joined the job",
        ),
        (
            "[Rank 7] NCCL watchdog thread terminated with exception: CUDA error: 7",
            f"Rank 7 failed with “[Rank 7] NCCL watchdog thread terminated with exception: CUDA error: 7”{UNKNOWN}",
        ),
        (
            "node1:8:9 [0] p2p.cc:220 NCCL WARN hipIpcGetMemHandle failed : invalid argument",
            "The job failed with “hipIpcGetMemHandle failed: invalid argument”: the cause is unknown",
        ),
        (
            "[node1:71] Signal: Bus error (7)\n[node1:71] *** End of error message ***",
            "A process ended with SIGBUS: most often /dev/shm is full",
        ),
        (
            "".join(f"[7.1] NVRM: Xid (PCI:0000:{bus}:00): 149, NETIR Fatal XC0 i0 Link 12\n" for bus in ("dc", "ed")),
            "NVLink failed, GPU 0000:dc:00 and 0000:ed:00",
        ),
        (
            f"{LAST_ERROR}[rank0]: socketFinalizeAccept: wrong magic 7 != 7",
            f"Rank 0 failed with “socketFinalizeAccept: wrong magic 7 != 7”{UNKNOWN}",
        ),
        (f"{LAST_ERROR}[rank0]: invalid socket 7/7", "NCCL reports on rank 0: invalid socket 7/7"),
        (f"after training is done\n{TIME_LIMIT}", "Training finished, and the job failed while its processes exited"),
        (
            f"{RAISED}ValueError: TP rank 1 is loaded, but other ranks didn't finish",
            f"The job failed with “ValueError: TP rank 1 is loaded, but other ranks didn't finish”{UNKNOWN}",
        ),
    ],
)
def test_title_shows_the_rank_host_or_line_from_the_output(output: str, title: str, tmp_path: Path):
    (tmp_path / "job.out").write_text(output + "\n")

    assert [finding.title for finding in logs([str(tmp_path / "job.out")]).report.findings][:1] == [title]


@pytest.mark.parametrize(
    ("raised", "title"),
    [
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 70368744177664 bytes.",
         "Host memory allocation failed on rank 1 at train.py:24: 65536 GiB requested"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 128. TiB for an array",
         "Host memory allocation failed on rank 1 at train.py:24"),
        ("MemoryError", "Host memory allocation failed on rank 1 at train.py:24"),
    ],
)  # fmt: skip
def test_rank_that_runs_out_of_memory_is_reported_with_its_line(raised: str, title: str, tmp_path: Path):
    lines = f"{RAISED}{raised}".splitlines()
    (tmp_path / "job.out").write_text("".join(f"[rank1]: {line}\n" for line in lines))

    assert [finding.title for finding in logs([str(tmp_path / "job.out")]).report.findings] == [title]


LATE = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000)"
STEP = "step 5: loss 2.1"
SUMMARY = """[0]:
  time      : 2026-11-23_04:31:09
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 71)
"""
OUT_OF_MEMORY = "RuntimeError: CUDA error: out of memory"
RESTART = "I1123 04:31:09.690000 70 api.py:900] Worker group FAILED. 1/1 attempts left; will restart worker group"
CHANNEL = "{}:71:81 [0] NCCL INFO Channel 00/0 : 3[0] -> 5[0] [{}] via NET/IB/0{}"


@pytest.mark.parametrize(
    ("lines", "said", "unsaid"),
    [
        ([f"[rank1]: {STEP}", GLOO, "[rank0]: gloo/transport/tcp"], "TORCH_DISTRIBUTED_DEBUG=DETAIL", "NCCL_DEBUG"),
        ([f"[rank0]:[E1 ProcessGroupNCCL.cpp:616] {LATE}"], "NCCL_DEBUG=WARN", "TORCH_DISTRIBUTED_DEBUG"),
        (["NVRM: Xid (PCI:0000:2b:00): 109, pid=7, name=python"], "a context switch took too long (Xid 109)", "!"),
        ([SUMMARY], "rank 1 crashed with SIGSEGV in a native library", "localhost)"),
        (
            [OUT_OF_MEMORY, RESTART, "Fatal Python error: Segmentation fault"],
            "Attempt 0 failed earlier: gpu-out-of-memory (",
            "no memory left",
        ),
        ([CHANNEL.format("a", "send", "/GDRDMA"), CHANNEL.format("b", "receive", "")], "into b alone", "Failed"),
        ([CHANNEL.format("a", "send", ""), CHANNEL.format("b", "receive", "")], "without GPUDirect", "alone"),
    ],
)
def test_report_matches_the_backend_hosts_and_attempts_of_the_job(
    lines: list[str], said: str, unsaid: str, tmp_path: Path
):
    (tmp_path / "job.out").write_text("\n".join(lines) + "\n")

    report = logs([str(tmp_path / "job.out")]).report
    text = " ".join([report.summary, *(finding.model_dump_json() for finding in report.findings)])

    assert said in text
    assert unsaid not in text


def test_rank_without_a_timeout_is_pointed_out_and_equal_lines_are_shown_once(tmp_path: Path):
    late = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, Timeout(ms)=600000)"
    lines = [f"[rank{rank}]: [Rank {rank}] {late} ran for 600012 ms." for rank in (0, 1, 3)]
    (tmp_path / "job.out").write_text("\n".join(["[rank2]: step 3", *lines, ENDED]) + "\n")

    (finding,) = logs([str(tmp_path / "job.out")]).report.findings

    assert finding.name == "job-failed-cause-not-proven"
    assert "Rank 2 printed no timeout, so check there first." in finding.detail
    assert len([evidence for evidence in finding.evidence if "Watchdog caught" in evidence.text]) == 1


def test_complete_communicator_far_into_a_log_is_not_an_nvls_hang(tmp_path: Path):
    begun, *_, complete = (sample for sample in SAMPLES if sample.cause == "nvls-hang")
    hang = begun.files["job.out"].splitlines(keepends=True)[-1]
    (tmp_path / "job.out").write_text("filler\n" * 1_000 + complete.files["job.out"] + hang)

    report = logs([str(tmp_path / "job.out")]).report

    assert isinstance(report, LogsReport)
    assert "nvls-hang" not in {cause.name for cause in report.causes}


WARNED = "node1:39:298 [0] include/alloc.h:48 NCCL WARN Cuda failure 'out of memory'"
STEPS = [f"epoch {number}: loss 0.{9 - number}" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("lines", "exit_code"),
    [
        pytest.param([WARNED, *STEPS, "job done"], 0, id="steps and a success message follow"),
        pytest.param([*STEPS, WARNED], 1, id="the warning is the last line"),
        pytest.param([*STEPS[:4], WARNED, *STEPS[4:]], 1, id="another rank ends its step"),
        pytest.param(["100%|#| 548M/548M [00:02<00:00, 259MB/s]", WARNED], 1, id="a download is not a success message"),
    ],
)
def test_nccl_warning_is_not_a_failure_if_steps_follow(lines: list[str], exit_code: int, tmp_path: Path):
    (tmp_path / "job.out").write_text("\n".join(lines) + "\n")

    assert logs([str(tmp_path / "job.out")]).report.exit_code == exit_code


COMPILED = "W0608 00:49:48.013000 71 torch/_dynamo/convert_frame.py:1436] "
IGNORED = ["Exception ignored in: <function Profile.__del__ at 0x7f>", *RAISED.splitlines(), "TypeError: not callable"]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*STEPS, "worker group successfully finished"], id="the launcher reports success"),
        pytest.param([*STEPS, '{"key": "run_stop", "metadata": {"status": "success"}}'], id="a success status"),
        pytest.param([*STEPS, "job done", *IGNORED], id="an exception that Python ignores"),
        pytest.param(
            [*(COMPILED + line for line in (*RAISED.splitlines(), "TypeError: not callable")), *STEPS, "job done"],
            id="a traceback that a logger reports",
        ),
        pytest.param(
            ["/opt/PIL/TiffImagePlugin.py:890: UserWarning: Truncated File Read", *STEPS, "Training took 00:53:12"],
            id="a warning about a sample",
        ),
    ],
)
def test_finished_job_has_no_failure(lines: list[str], tmp_path: Path):
    (tmp_path / "job.out").write_text("\n".join(lines) + "\n")

    report = logs([str(tmp_path / "job.out")]).report

    assert (report.exit_code, report.findings) == (0, ())


@pytest.mark.parametrize(
    ("lines", "exit_code"),
    [
        pytest.param(
            [*STEPS, *RAISED.splitlines(), "ValueError: bad", "Upload of logs to s3 succeeded"], 1, id="an upload"
        ),
        pytest.param(["epoch 0: training took 50.3 s", "evaluating"], 3, id="the duration of an epoch"),
        pytest.param(
            [
                *STEPS,
                "Stack (most recent call last):",
                '  File "/home/me/data.py", line 3, in get',
                "Error: slow",
                *STEPS,
                "job done",
            ],
            0,
            id="a stack that a logger prints",
        ),
        pytest.param(
            [WAITED.format(0), "*** SIGABRT received at time=1710000000 on cpu 3 ***"], 3, id="the abort of a watchdog"
        ),
        pytest.param(
            [LAUNCHER.replace("ValueError: You", "ImportError: numpy").strip()],
            1,
            id="an import that fails in a launcher",
        ),
    ],
)
def test_misleading_lines_do_not_change_the_exit_code(lines: list[str], exit_code: int, tmp_path: Path):
    (tmp_path / "job.out").write_text("\n".join(lines) + "\n")

    report = logs([str(tmp_path / "job.out")]).report

    assert report.exit_code == exit_code
    assert not any(finding.title.startswith(("A rank crashed", "The arguments")) for finding in report.findings)
