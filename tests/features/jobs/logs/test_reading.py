"""A job's output is read in any form: prefixes, directories, archives, bars. Junk is reported in one sentence."""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_doctor.app import recordings
from ddp_doctor.app.outcome import UsageError
from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.features.jobs.facts import JobLogFact, RankSeen, SignSeen
from ddp_doctor.features.jobs.logs import story as job_story
from ddp_doctor.features.jobs.logs import use_case as job_reading
from ddp_doctor.features.jobs.logs.use_case import logs
from ddp_doctor.features.jobs.reading import words
from ddp_doctor.features.jobs.reading.prefix import Origin, Prefixes
from ddp_doctor.features.jobs.sources.slurm import files_of_job
from ddp_doctor.model.choices import Verdict
from ddp_doctor.parse.redact import masked
from ddp_doctor.parse.text import plain
from ddp_doctor.sources import job_files, unpacking
from tests.recordings import path_of

SIGN = "misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-A to 9 bytes: No space left on device"
NOON_S = 1772366400.0  # 2026-03-01 12:00 UTC


def _read(*paths: Path) -> JobLogFact:
    return JobLogFact.model_validate(job_reading.read_job([str(path) for path in paths])[0].fact)


def _of(tmp_path: Path, text: str | bytes, name: str = "job.out") -> JobLogFact:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return _read(path)


def _sign(fact: JobLogFact, name: str = "shm-no-space") -> SignSeen:
    (found,) = (sign for sign in fact.signs if sign.sign == name)
    return found


def _rank(fact: JobLogFact, number: int) -> RankSeen:
    return next(rank for rank in fact.ranks if rank.rank == number)


@pytest.mark.parametrize(
    ("line", "origin"),
    [
        ("[default3]:x", Origin(local_rank=3, launcher="torchrun")),
        ("[default3]:[rank11]: x", Origin(rank=11, local_rank=3, launcher="torchrun")),
        ("[trainer-3:11]:x", Origin(rank=11, local_rank=3, launcher="torchrun")),
        ("[rank3]:[E301 x.cpp:1] x", Origin(rank=3)),
        ("[rank3]:[E0301 12:00:00.5 ProcessGroupNCCL.cpp:616] x", Origin(rank=3, at_s=NOON_S + 0.5)),
        ("[TC][rank=3][name=default_pg] x", Origin(rank=3)),
        ("[TC][rank=3][name=mesh_tp] x", Origin()),
        ("11: x", Origin(task=11, launcher="srun")),
        (" 7: [rank7]: x", Origin(rank=7, task=7, launcher="srun")),
        ("[1,11]<stderr>:x", Origin(rank=11, launcher="mpirun")),
        ("[prterun-n1-9@1,11]<stdout>: x", Origin(rank=11, launcher="mpirun")),
        ("Sun Mar  1 12:00:00 2026[1,2]<stdout>:x", Origin(rank=2, at_s=NOON_S, launcher="mpirun")),
        ("[pod/train-worker-1/pytorch] x", Origin(host="train-worker-1", launcher="kubernetes")),
        ("(TrainWorker pid=812, ip=10.0.0.2) x", Origin(host="10.0.0.2", pid=812, launcher="ray")),
        ("\x1b[36m(W pid=8)\x1b[0m x [repeated 3x across cluster]", Origin(pid=8, launcher="ray", times=3)),
        ("2026-03-01T13:00:00.25+01:00 x", Origin(at_s=NOON_S + 0.25)),
        ("2026-03-01T12:00:00.25Z stderr F x", Origin(at_s=NOON_S + 0.25)),
        ("[2026-03-01 12:00:00] n1:12:14 [3] NCCL WARN x", Origin(host="n1", pid=12, gpu=3, at_s=NOON_S)),
        ("n1:12:14 [3] init.cc:9 (f) NCCL WARN x", Origin(host="n1", pid=12, gpu=3)),
        ("Mar  1 12:00:00 n1 kernel: x", Origin(host="n1", at_s=NOON_S, kernel=True)),
        ("[12345.678901] x", Origin(kernel=True)),
        ("E0301 12:00:00.5 471 torch/distributed/api.py:8] x", Origin(pid=471, at_s=NOON_S + 0.5)),
        ('{"log":"[rank3]: x\\n","stream":"stderr","time":"2026-03-01T12:00:00Z"}', Origin(rank=3, at_s=NOON_S)),
        ("[epoch3]: x", Origin()),
        ("x", Origin()),
    ],
)
def test_prefix_shows_the_origin_and_time_of_a_line(line: str, origin: Origin):
    found, text = Prefixes(2026).split(plain(line))

    assert found._replace(stream="") == origin
    assert text.endswith("x")
    assert len(text) < 30


def test_prefixes_of_stern_and_pdsh_are_learned_from_unambiguous_lines():
    stern, pdsh = Prefixes(2026), Prefixes(2026)
    stern.split("+ worker-1 \u203a pytorch")
    pdsh.split("node1: [rank8]: Traceback (most recent call last):")

    assert stern.split("worker-1 pytorch x")[0].host == "worker-1"
    assert pdsh.split("node1: x")[0].host == "node1"
    assert Prefixes(2026).split("node1: x")[0].host is None


TRACEBACKS = """\
[default1]:[rank9]: Traceback (most recent call last):
[default0]:[rank8]: Traceback (most recent call last):
[default1]:[rank9]:   File "/home/me/train.py", line 31, in <module>
[default0]:[rank8]:   File "/home/me/train.py", line 31, in <module>
[default0]:[rank8]:     main()
[default1]:[rank9]:   File "/v/site-packages/torch/nn/module.py", line 17, in _call_impl
n1:4:5 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
[default1]:[rank9]: ValueError: bad token=abcdefgh12345
[default0]:[rank8]: KeyError: 'x'
"""


def test_interleaved_tracebacks_are_separated_and_show_the_users_frame(tmp_path: Path):
    first, second = (sign for sign in _of(tmp_path, TRACEBACKS).signs if sign.sign == "exception")

    assert (first.rank, first.where.line, first.values["first_line"]) == (9, 8, "1")
    assert first.values["where"] == "/home/me/train.py:31 in <module>"
    assert first.values["frames"].endswith("\n/v/site-packages/torch/nn/module.py:17 in _call_impl")
    assert (second.rank, second.values["type"], second.values["message"]) == (8, "KeyError", "'x'")
    assert "abcdefgh" not in first.model_dump_json()


@pytest.mark.parametrize("before", ["", "filler\n" * 1_000], ids=["at the beginning", "far into the file"])
def test_nccl_lines_inside_a_traceback_are_ignored(before: str, tmp_path: Path):
    nccl = "n1:4:5 [0] NCCL INFO Using network IB\nn1:4:5 [0] NCCL INFO Trees [0] -1/-1/-1->1->0\n"
    lines = ("Traceback (most recent call last):", '  File "/home/me/t.py", line 3, in f', "ValueError: x")

    exception = _sign(_of(tmp_path, before + nccl.join(f"{line}\n" for line in lines)), "exception")

    assert (exception.values["type"], exception.values["where"]) == ("ValueError", "/home/me/t.py:3 in f")


def test_one_exception_on_all_ranks_is_one_sign(tmp_path: Path):
    lines = (f"[rank{rank}]: {text}\n" for text in ("Traceback (most recent call last):", "E: x") for rank in (2, 0, 1))

    fact = _of(tmp_path, "".join(lines))

    assert _sign(fact, "exception").ranks == (0, 1, 2)


SUMMARY = """\
[1]:
  time      : 2026-03-01_12:00:00
  host      : node1
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 123)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 123
"""


@pytest.mark.parametrize(
    ("text", "rank", "ended"),
    [
        (SUMMARY, 9, (None, "SIGKILL")),
        ("srun: error: node1: tasks 3,8-9: Exited with exit code 7\n", 9, (7, None)),
        ("srun: error: node1: task 9: Bus error (core dumped)\n", 9, (None, "SIGBUS")),
        ("mpirun noticed that process rank 9 with PID 0 on node node1 exited on signal 11 (x)\n", 9, (None, "SIGSEGV")),
        ("  Process name: [[61,1],9]\n  Exit code:    3\n", 9, (3, None)),
        (
            "[default1]:[rank9]: x\nE0301 12:00:00.5 4 a.py:8] failed (exitcode: 1) local_rank: 1 (pid: 3) of binary\n",
            9,
            (1, None),
        ),
    ],
)
def test_exit_of_a_rank_is_read_from_launcher_output(
    text: str, rank: int, ended: tuple[int | None, str | None], tmp_path: Path
):
    fact = _of(tmp_path, text)

    assert (_rank(fact, rank).exit_code, _rank(fact, rank).signal) == ended
    assert 1 not in {rank.rank for rank in fact.ranks}


def test_srun_tasks_that_run_torchrun_are_not_ranks(tmp_path: Path):
    fact = _of(tmp_path, "0: [default3]:[rank3]: x\nsrun: error: node1: task 0: Exited with exit code 1\n")

    assert [rank.rank for rank in fact.ranks] == [3]


def test_rank_gpu_and_paths_are_read_from_nccl_output(tmp_path: Path):
    text = (
        "n1:12:14 [3] NCCL INFO comm 0x5 rank 11 nranks 16 cudaDev 3 nvmlDev 3 busId 1b000 commId 0x9 - Init START\n"
        "n1:12:14 [3] NCCL INFO Channel 00/0 : 11[3] -> 12[4] via P2P/CUMEM\n"
        "n1:12:15 [3] NCCL INFO Channel 01/0 : 11[3] -> 12[4] via P2P/CUMEM\n"
        "n1:12:15 [3] NCCL INFO CollNet 00/0 : 11 [send] via COLLNET/SHARP/0\n"
        f"\nn1:12:14 [3] {SIGN}\n"
    )
    (tmp_path / "job.out").write_text(text)

    log, paths = job_reading.read_job([str(tmp_path / "job.out")])

    fact = JobLogFact.model_validate(log.fact)
    assert (fact.world_size, _sign(fact).rank, _rank(fact, 11).gpu) == (16, 11, 3)
    assert paths.rank == 11
    said = NcclTransportFact.model_validate(paths.fact)
    assert [path.via for path in said.transports] == ["P2P/CUMEM"]
    assert said.collnet == ("COLLNET/SHARP/0",)


def test_last_line_of_a_silent_rank_is_found_far_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_files, "CHUNK_BYTES", 2_000)
    lines = [f"[rank{rank}]: step {step} of rank {rank}\n" for step in range(200) for rank in range(4)]
    spoke = [line for line in lines if not line.startswith("[rank2]") or "step 4 " in line]

    fact = _of(tmp_path, "".join(spoke))

    last = {rank.rank: (rank.last.line, rank.last.text) for rank in fact.ranks if rank.last}
    assert last[2] == (spoke.index("[rank2]: step 4 of rank 2\n") + 1, "step 4 of rank 2")
    assert last[3] == (len(spoke), "step 199 of rank 3")


@pytest.mark.parametrize("size", [64, 100, 1_000])
def test_file_read_in_small_chunks_gives_the_same_facts(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    filler = "filler line\n" * 40
    text = f"{filler}{TRACEBACKS}{filler}[rank5]: {SIGN}\n{SUMMARY}end"
    whole = _of(tmp_path, text)
    monkeypatch.setattr(job_files, "CHUNK_BYTES", size)

    assert _of(tmp_path, text) == whole
    assert whole.files[0].lines == text.count("\n") + 1


def test_search_without_the_library_gives_the_same_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = TRACEBACKS + SIGN
    found = _of(tmp_path, text)
    search_for = words.search_for.__wrapped__  # without its cache
    monkeypatch.setattr(job_reading, "search_for", search_for)
    monkeypatch.setitem(__import__("sys").modules, "ahocorasick_rs", None)

    assert _of(tmp_path, text) == found
    assert search_for((b"abcd", b"abc", b"cde"))(b"xabcde") == [(0, 1, 5), (1, 1, 4), (2, 3, 6)]


@pytest.mark.parametrize(
    "text",
    [
        f"10%|#  | 1/9\r20%|## | 2/9\r[rank5]: {SIGN}\rdone\n",
        f"[rank5]: {SIGN}\r\n",
        f"[rank5]: 10%|# |\r{SIGN}\r30%\n",
        f"\x1b[31m[rank5]: {SIGN}\x1b[0m\n",
        f"[rank5]: {'x' * 30_000} {SIGN} {'y' * 30_000}\n",
    ],
    ids=["progress bar", "CRLF", "prefix before a bar", "colors", "long line"],
)
def test_line_is_found_despite_progress_bars_colors_and_length(text: str, tmp_path: Path):
    sign = _sign(_of(tmp_path, text))

    assert sign.rank == 5
    assert sign.where.line == 1
    assert "No space left on device" in sign.where.text
    assert len(sign.where.text) <= 400


def test_log_directory_of_torchrun_gives_ranks_from_paths_and_error_files(tmp_path: Path):
    for rank in (0, 1):
        folder = tmp_path / f"none_ab/attempt_0/{rank}"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"step of {rank}\n")
    stack = 'Traceback (most recent call last):\n  File "t.py", line 3, in f\nValueError: x'
    error = {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": stack, "timestamp": "1772366400"}}}
    (tmp_path / "none_ab/attempt_0/1/error.json").write_text(json.dumps(error))

    fact = _read(tmp_path)

    assert [(process.local_rank, process.last.text if process.last else "") for process in fact.local_ranks] == [
        (0, "step of 0"),
        (1, "ValueError: x"),
    ]
    assert (_sign(fact, "exception").local_rank, _sign(fact, "exception").at_s) == (1, NOON_S)

    (tmp_path / "torchrun.log").write_text("world_size=2\n")
    assert [rank.rank for rank in _read(tmp_path).ranks] == [0, 1]


def _tar(path: Path, mode: str, members: dict[str, bytes | tarfile.TarInfo]) -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if isinstance(content, tarfile.TarInfo) else content
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def _zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


LOG = f"[rank5]: {SIGN}\n".encode()


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(gzip.compress(LOG[:20]) + gzip.compress(LOG[20:])),
        lambda path: path.write_bytes(bz2.compress(LOG)),
        lambda path: path.write_bytes(lzma.compress(LOG)),
        lambda path: _zip(path, {"a/job.out": LOG}),
        lambda path: _tar(path, "w", {"a/job.out": LOG}),
        lambda path: _tar(path, "w:gz", {"a/job.out": gzip.compress(LOG)}),
        lambda path: _tar(path, "w:xz", {"a/job.out": LOG}),
    ],
    ids=["gzip", "bzip2", "xz", "zip", "tar", "tar.gz with gzip", "tar.xz"],
)
def test_compressed_files_and_archives_are_read_in_place(write: Callable[[Path], object], tmp_path: Path):
    write(tmp_path / "packed")

    fact = _read(tmp_path / "packed")

    assert _sign(fact).rank == 5
    assert fact.files[0].size_bytes == len(LOG)
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]


def _link(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    ("write", "why"),
    [
        (lambda path: _tar(path, "w", {"../up": LOG}), "leads out of the archive"),
        (lambda path: _tar(path, "w", {"/etc/x": LOG}), "leads out of the archive"),
        (lambda path: _zip(path, {"a/../../x": LOG}), "leads out of the archive"),
        (lambda path: _tar(path, "w", {"a": _link("a", tarfile.SYMTYPE)}), "a link or a device"),
        (lambda path: _tar(path, "w", {"a": _link("a", tarfile.LNKTYPE)}), "a link or a device"),
        (lambda path: _tar(path, "w", {"a": _link("a", tarfile.FIFOTYPE)}), "a link or a device"),
        (lambda path: _tar(path, "w", {"a": _zip(path, {"x": LOG}).read_bytes()}), "archive within an archive"),
        (lambda path: path.write_bytes(gzip.compress(b"\n" * 4_000_000)), "unpacks to more than"),
        (lambda path: _tar(path, "w:gz", {"a": b"\n" * 4_000_000}), "unpacks to more than"),
        (lambda path: _zip(path, {"a": b"\n" * 4_000_000}), "unpacks to more than"),
        (lambda path: path.write_bytes(gzip.compress(os.urandom(900))[:500]), "truncated"),
        (lambda path: path.write_bytes(gzip.compress(LOG)[:-12]), "truncated"),
        (lambda path: path.write_bytes(b"PK\x03\x04 no zip"), "cannot be read"),
        (lambda path: path.write_bytes(b"\x28\xb5\x2f\xfd no zstd"), ""),
        (lambda path: path.write_bytes(bytes(range(256)) * 40), "binary"),
        (lambda path: path.write_bytes(b""), "empty"),
        (os.mkfifo, "named pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "device"),
        (lambda path: path.symlink_to("gone"), "cannot be read"),
    ],
)
def test_unreadable_file_has_a_reason_and_other_files_are_read(
    write: Callable[[Path], object], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(unpacking, "FREE_BYTES", 1_000_000)
    (tmp_path / "good.log").write_bytes(LOG)
    write(tmp_path / "packed")

    fact = _read(tmp_path / "packed", tmp_path / "good.log")

    assert why in (fact.files[0].unread or "it was read")
    assert fact.files[0].unread
    assert fact.files[-1].unread is None
    assert _sign(fact).where.file.endswith("good.log")


def test_usage_error_names_the_first_file_if_no_file_was_read(tmp_path: Path):
    with pytest.raises(UsageError, match=r"nope\.log': there is no such file \(and 1 more\)"):
        job_reading.read_job([str(tmp_path / "nope.log"), str(tmp_path / "*.out")])


def test_partly_read_file_is_unsure_and_a_file_without_a_line_is_refused(tmp_path: Path):
    steps = b"".join(b"step %d\n" % step for step in range(20_000))
    (tmp_path / "cut.gz").write_bytes(gzip.compress(steps)[:-12])
    (tmp_path / "random.gz").write_bytes(gzip.compress(os.urandom(900))[:20])

    outcome = logs([str(tmp_path / "cut.gz")])

    assert list(job_story.lines(outcome.report, outcome.recording))[1].startswith("Read in part: ")
    assert outcome.report.summary.startswith("The end of the job is unknown: ")
    assert outcome.report.exit_code == 3
    with pytest.raises(UsageError, match="truncated"):
        logs([str(tmp_path / "random.gz")])


def test_files_beyond_the_limit_are_reported_as_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_files, "MOST_FILES", 20)
    for number in range(25):
        (tmp_path / f"rank_{number}.log").write_bytes(b"step\n")

    fact = _read(tmp_path)

    assert len(fact.files) == 21
    assert "beyond the 20 files" in (fact.files[-1].unread or "")
    assert [rank.rank for rank in fact.ranks] == list(range(20))


@pytest.mark.parametrize(
    "line",
    [
        "[Rank N] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=N, OpType=ALLREDUCE, Timeout(ms)=N)",
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, TensorShape=[N, N])",
        "Timed out … in store based barrier on rank: 0 (world_size=N, worker_count=N, timeout=1)",
        "Ranks N failed to pass monitoredBarrier in N ms",
        "[N] is setting up NCCL communicator and retrieving ncclUniqueId from [N] via store, got error: Socket Timeout",
        "launch.py: exits with return code = -N",
        "NCCL WARN Duplicate GPU detected : rank N and rank N both on CUDA device N",
        "9%|#| 1/2 [N:59:59<1, 1it/s]",
    ],
)
def test_numbers_of_5000_digits_do_not_stop_the_reading(line: str, tmp_path: Path):
    (tmp_path / "job.out").write_text(
        "\n".join([line.replace("N", "9" * 5000), line.replace("N", "9" * 25), SIGN]) + "\n"
    )

    assert logs([str(tmp_path / "job.out")]).report.findings


def test_hostile_text_is_shown_without_control_characters_and_credentials(tmp_path: Path):
    secrets = f"https://me:hunter2@host/x HF_TOKEN=hf_{'a' * 30}"
    text = f"[rank5]: \x1b]0;title\x07\x1b[2J[bold]\u202e\x00\x08 {secrets} {SIGN}\xff\n"

    shown = _sign(_of(tmp_path, text.encode("latin-1", "ignore"))).where.text

    assert shown.isprintable()
    assert "hunter2" not in shown
    assert "hf_a" not in shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("etcd://me:secret1@host:2379 ok", "etcd://(kept back) ok"),
        ("password=Tr0ub4dor&3 ok", "(kept back) ok"),
        ("GET /x?token=abcdef&page=2", "GET /x?(kept back)&page=2"),
        ("api_key='abcdefgh'", "(kept back)'"),
        ('{"password": "hunter22"}', '{"(kept back)"}'),
        ("run --auth-token abcdefgh --x", "run (kept back) --x"),
        ("Authorization: Bearer abcdefghij", "Authorization: (kept back)"),
        ("tokens: 12345, tokenizer: /a/b", "tokens: 12345, tokenizer: /a/b"),
        ("tcp://node1:29500", "tcp://node1:29500"),
    ],
)
def test_credentials_are_removed_from_a_line(text: str, shown: str):
    assert masked(text) == shown


def test_very_long_line_is_read_in_pieces_of_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_files, "CHUNK_BYTES", 10_000)
    file = tmp_path / "job.out"
    file.write_bytes(b"x" * 300_000 + b"\n" + LOG)
    pieces: list[int] = []

    def search(data: bytes) -> list[tuple[int, int, int]]:
        pieces.append(len(data))
        return []

    monkeypatch.setattr(job_reading, "search_for", lambda all_words: search)

    _read(file)

    assert max(pieces) <= 65_536
    assert sum(pieces) == file.stat().st_size


def test_findings_of_recordings_follow_the_findings_of_the_output(tmp_path: Path):
    (tmp_path / "job.out").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    stalled, lost = (str(path_of(name)) for name in ("hang/all-ranks-in-one-collective", "gpus/one-lost"))

    outcome = logs([str(tmp_path / "job.out"), stalled, lost])

    assert outcome.report.findings[0].name == "gpu-out-of-memory"
    assert [finding.code for finding in outcome.report.findings[1:]] == ["DD616", "DD304"]
    assert outcome.report.findings[1:] == tuple(
        finding for path in (stalled, lost) for finding in recordings.replay(Path(path)).report.findings
    )
    assert outcome.report.summary.startswith("Failed: GPU is out of memory")
    (tmp_path / "logs.json").write_text(outcome.recording.model_dump_json())
    assert recordings.replay(tmp_path / "logs.json").report.findings == outcome.report.findings
    assert recordings.replay(tmp_path / "logs.json", ("DD6", "DD304")).report.findings == outcome.report.findings[:1]


def test_fault_in_a_recording_is_not_a_failure_of_the_job():
    outcome = logs([str(path_of("gpus/one-lost"))])

    assert outcome.report.verdict is Verdict.UNHEALTHY
    assert outcome.report.summary.startswith("No failure, but: GPU 3 (0000:61:00.0) on node0: lost")


def test_failure_in_a_recording_is_not_attributed_to_the_output(tmp_path: Path):
    (tmp_path / "job.out").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    (tmp_path / "logs.json").write_text(logs([str(tmp_path / "job.out")]).recording.model_dump_json())

    outcome = logs([str(tmp_path / "logs.json")])

    assert [finding.name for finding in outcome.report.findings] == ["gpu-out-of-memory"]
    assert outcome.report.summary.startswith("No failure in the output, but in a recording: GPU is out of memory")


SCONTROL = """#!/bin/sh
case "$1$2" in
showjob) echo "JobId=4711 JobName=x"; echo "   StdOut=$PWD/out.txt"; echo "   WorkDir=$PWD" ;;
writebatch_script)
  echo 'export TORCH_FR_DUMP_TEMP_FILE=traces/$SLURM_JOB_ID/rank_'
  echo 'NCCL_DEBUG_FILE=$(x)/y' ;;
esac
"""


def test_files_of_a_slurm_job_are_found_with_and_without_scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces/4711").mkdir(parents=True)
    for name in ("slurm-4711.out", "slurm-47110.out", "out.txt", "traces/4711/rank_0", "bin"):
        (tmp_path / name).touch()
    (tmp_path / "bin").unlink()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/scontrol").write_text(SCONTROL)
    (tmp_path / "bin/scontrol").chmod(0o755)

    alone = files_of_job("4711", {"PATH": "/nowhere"}, tmp_path)
    told = files_of_job("4711", {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, tmp_path)

    assert [path.name for path in alone] == ["slurm-4711.out"]
    assert [path.name for path in told] == ["slurm-4711.out", "out.txt", "rank_0"]
    with pytest.raises(ValueError, match="is not a SLURM job ID"):
        files_of_job("../x", {}, tmp_path)
