"""``ddp-doctor trace``: the inputs it reads and refuses, and its outputs."""

import fcntl
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import termios
import zipfile
from pathlib import Path
from typing import IO

import pytest

from ddp_doctor.features.trace.use_case import read_traces
from tests.cli.test_cli import DOCTOR
from tests.features.trace.written import RUNLOOP, event, written
from tests.schemas import refused
from tests.waiting import LIMIT_S, wait_until

ROW = re.compile(r"^[ !]+(\S+) +10\.00 ", re.MULTILINE)


def trace(rank: int | None = 0, *, world: int = 2, steps: int = 4, late: float = 0.0) -> str:
    """Return a rank's file: steps of 10 ms with an all-reduce that it enters ``late`` us later than necessary."""
    events = []
    for number in range(steps):
        at = 10_000.0 * number
        reduces = at + 7_000 + late
        events += [
            event(f"ProfilerStep#{number}", at, 9_999, "user_annotation"),
            event("DistributedDataParallel.forward", at + 10, 2_000, "user_annotation"),
            event("aten::linear", at + 20, 1_900),
            event("autograd::engine::evaluate_function: AddmmBackward0", at + 2_050, reduces - at - 2_100),
            event("c10d::allreduce_", reduces - 40, 20),
            event("gloo:all_reduce", reduces, at + 8_000 - reduces, "user_annotation", RUNLOOP),
            event("Optimizer.step#SGD.step", at + 8_000, 1_900, "user_annotation"),
        ]
    return written(events, rank, world)


def folder(at: Path) -> Path:
    at.mkdir(parents=True, exist_ok=True)
    for rank in (0, 1):
        (at / f"rank{rank}.json").write_text(trace(rank))
    return at


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return folder(tmp_path / "traces")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def packed(at: Path, text: str) -> Path:
    at.write_bytes(gzip.compress(text.encode()))
    return at


def test_a_healthy_job_is_a_table_of_its_ranks_and_exit_0(asked, traces):
    done = asked("trace", str(traces))

    assert (done.returncode, done.stderr) == (0, "")
    assert ROW.findall(done.stdout) == ["0", "1"]
    assert "The median of 2 steps of 2 ranks, in ms:" in done.stdout
    assert "the first 2 recorded steps are excluded" in done.stdout
    verdict = "No avoidable bottleneck above 10% (2 ranks, 2 steps of 10 ms)"
    assert f"{verdict}. Exposed communication takes 10% of the step." in done.stdout


def test_late_rank_is_reported_with_exit_1(asked, tmp_path):
    (tmp_path / "rank0.json").write_text(trace(0, steps=8, late=-4_000))
    (tmp_path / "rank1.json").write_text(trace(1, steps=8))

    done = asked("trace", str(tmp_path))

    assert done.returncode == 1
    assert ROW.findall(done.stdout) == ["0", "1"]
    assert re.search(r"^ +!! 1 ", done.stdout, re.MULTILINE)
    assert re.search(r"^Slow: Rank 1\b", done.stdout, re.MULTILINE)
    assert asked("trace", str(tmp_path), "--fail-on", "error").returncode == 0
    assert "Ignored: DDT10" in asked("trace", str(tmp_path), "--ignore", "DDT").stdout


def test_files_globs_archives_and_compressed_files_give_the_same_result(asked, traces, tmp_path):
    packed(tmp_path / "rank0.json.gz", trace(0))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(traces / "rank0.json", "rank0.json")
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar:
        tar.add(traces / "rank0.json", "run/rank0.json")
    for path in ("rank0.json.gz", "all.zip", "all.tar.gz", "traces/rank[0].json"):
        assert ROW.findall(asked("trace", path, "traces/rank1.json", cwd=tmp_path).stdout) == ["0", "1"], path
    assert ROW.findall(asked("trace", "-", "traces/rank1.json", text=trace(0), cwd=tmp_path).stdout) == ["0", "1"]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank1.json", 1),
        ("trace_rank_1.json", 1),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json", 34),
        ("rank_2/trace.json", 2),
        ("worker3.json", 3),
        ("runs/worker-2/trace.json", 2),
        ("last_trace6/first.json", None),
        ("trace_1.json", 1),
        ("trace_20260131.json", None),
        ("4ranks/rank1.json", 1),
        ("rank_1.1759000000000.pt.trace.json", 1),
        ("worker-3_4711.1759000000000.pt.trace.json", None),  # a host of that name
        ("node2_4711.1759000000000.pt.trace.json", None),
        ("frank1.json", None),
        ("trace.json", None),
    ],
)
def test_rank_missing_in_the_trace_is_taken_from_the_file_name(tmp_path, name, rank):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(trace(None))

    [fact] = read_traces([str(path)]).facts

    assert fact.rank == rank


def test_the_traces_own_rank_counts_before_the_files_name(tmp_path):
    (tmp_path / "rank7.json").write_text(trace(1))

    [fact] = read_traces([str(tmp_path)]).facts

    assert fact.rank == 1


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("rank0.json", b"", "is empty"),
        ("rank0.json", b"not a trace\n" * 20, "it is not a trace"),
        ("rank0.json", b'{"loss": [1, 2, 3]}', "it is not a trace"),
        ("rank0.json.gz", gzip.compress(b'{"loss": 1}', mtime=0), "it is not a trace"),
        ("rank0.json.gz", gzip.compress(trace(0).encode(), mtime=0)[:40], "rank0.json.gz': "),
        ("report.nsys-rep", b"\x00\x01\x02", "a report of Nsight Systems; expected a trace of torch.profiler"),
        ("report.qdstrm", b"\x00\x01\x02", "a report of Nsight Systems; expected a trace of torch.profiler"),
        ("report.sqlite", b"SQLite format 3\x00", "a database, as Nsight Systems exports it; expected a trace"),
        ("snapshot.pickle", b"\x80\x04}\x94.", "a pickle, like torch's memory snapshots; expected a trace"),
    ],
)
def test_invalid_trace_is_one_sentence_with_exit_2(asked, tmp_path, name, content, sentence):
    (tmp_path / name).write_bytes(content)

    done = asked("trace", str(tmp_path / name))

    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["/nowhere/rank0.json"], "cannot read '/nowhere/rank0.json': there is no such file"),
        (["{empty}"], "found no file to read"),
        (["{traces}", "--window", "first"], "invalid --window 'first': expected latest, all or a number of at least 1"),
        (["{traces}", "--window", "0"], "invalid --window '0'"),
        (["{traces}", "--window", "2"], "--window 2 is out of range: the traces have only window 1"),
        (["{traces}", "--ignore", "DDT9"], "unknown rule 'DDT9'"),
        (
            ["{traces}", "--against", "{traces}/rank0.json"],
            "rank0.json' is JSON, but a report or recording of ddp-doctor is expected",
        ),
        ([], "missing argument"),
    ],
)
def test_wrong_use_gives_a_reason_and_exit_code_2(asked, traces, tmp_path, args, sentence):
    (tmp_path / "empty").mkdir()

    done = asked("trace", *(arg.format(traces=traces, empty=tmp_path / "empty") for arg in args))

    assert done.returncode == 2
    assert sentence in done.stderr


def test_other_files_next_to_the_traces_are_listed_as_unread(asked, traces):
    (traces / "train.log").write_text("epoch 3\n")
    (traces / "options.json").write_text('{"lr": 0.1}')
    (traces / "report.nsys-rep").write_bytes(b"\0\1")
    (traces / "rank2.json").write_text(trace(2).partition("[")[0])

    done = asked("trace", str(traces), "--json", str(traces / "report.json"))

    assert done.returncode == 0
    assert "   not read: 2 other files are not traces\n" in done.stdout
    unread = json.loads((traces / "report.json").read_text())["unread"]
    assert {Path(name).name for name in unread} == {"rank2.json", "report.nsys-rep", ""}
    assert "not read: train.log: it is not a trace" in asked("trace", ".", "train.log", cwd=traces).stdout


def test_truncated_file_gives_its_complete_steps(asked, traces):
    text = trace(1, steps=6)
    (traces / "rank1.json").write_text(text[: len(text) * 9 // 10])

    done = asked("trace", str(traces), "--json", "-")

    [_, cut] = json.loads(done.stdout)["windows"][0]["ranks"]
    assert 0 < len(cut["steps"]) < 6


def test_ranks_of_two_jobs_are_not_a_healthy_job(asked, traces):
    (traces / "rank1.json").write_text(trace(1, world=4))

    done = asked("trace", str(traces))

    assert done.returncode == 3
    assert "Unsure: " in done.stdout


def test_outputs_match_their_schemas_and_a_replay_is_identical(asked, traces, tmp_path):
    written = {name: str(tmp_path / name) for name in ("json", "record", "html", "markdown")}
    done = asked("trace", str(traces), *(word for name, path in written.items() for word in (f"--{name}", path)))

    assert refused("trace-report", Path(written["json"]).read_text()) == []
    assert refused("recording", Path(written["record"]).read_text()) == []
    again = asked("replay", written["record"], "--json", str(tmp_path / "again"))
    assert json.loads((tmp_path / "again").read_text()) == json.loads(Path(written["json"]).read_text())
    table = done.stdout.partition("\n\n")[0]
    assert table in again.stdout
    assert table in Path(written["markdown"]).read_text()
    assert "Parts of the median step" in Path(written["html"]).read_text()
    assert "trace    No avoidable bottleneck above 10%" in asked("replay").stdout


def test_redacted_outputs_have_no_name_of_a_file(asked, traces, tmp_path):
    (traces / "alice-llama.log").touch()
    paths = [str(tmp_path / name) for name in ("report.json", "recording.json", "page.html", "page.md")]
    done = asked(
        *("trace", "traces", "--redact", "--json", paths[0], "--record", paths[1], "--html", paths[2]),
        *("--markdown", paths[3]),
        cwd=traces.parent,
    )

    assert done.returncode == 0
    for text in (done.stdout, *(Path(path).read_text() for path in paths)):
        assert not re.search(r"traces/|rank0\.json|alice", text.partition("\nRecording: ")[0])


def test_ctrl_c_reports_the_ranks_read_so_far(traces):
    (traces / "rank1.json").write_text(trace(1, steps=400))
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for rank in (0, 1):
            tar.add(traces / f"rank{rank}.json", f"rank{rank}.json")
    command = [*DOCTOR, "trace", "-", "--json", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as doctor:
        pipe = doctor.stdin
        assert pipe is not None
        pipe.write(archive.getvalue()[:-100_000])  # the read-ahead buffer ends after the first file
        pipe.flush()
        wait_until(lambda: unread_in(pipe) == 0)
        doctor.send_signal(signal.SIGINT)
        told, _ = doctor.communicate(timeout=LIMIT_S)

    report = json.loads(told)
    assert doctor.returncode == report["exit_code"] == 130
    assert report["summary"].startswith("Interrupted: ")
    assert [rank["rank"] for rank in report["windows"][0]["ranks"]] == [0]


def unread_in(pipe: IO[bytes]) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_ctrl_c_ends_a_large_file_after_the_steps_that_were_read(tmp_path):
    text = trace(0, steps=2_000)
    assert len(text) > 2 << 20
    (tmp_path / "rank0.json").write_text(text)
    (tmp_path / "rank1.json").write_text(text)

    read = read_traces([str(tmp_path)], lambda *_: os.kill(os.getpid(), signal.SIGINT))

    assert read.interrupted
    [fact] = read.facts
    assert 0 < fact.steps[-1].number < 1_999
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_reading_does_not_import_torch(traces):
    reading = f"from ddp_doctor.features.trace.use_case import read_traces; read_traces([{str(traces)!r}])"
    code = f"import sys; {reading}; print('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
