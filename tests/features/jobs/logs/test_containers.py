"""Output inside other formats, and py-spy dumps: the cause is the same as for plain text."""

import json
from pathlib import Path

import pytest

from ddp_doctor.features.jobs.logs import use_case as job_reading
from ddp_doctor.features.jobs.logs.use_case import logs
from ddp_doctor.features.jobs.reading.containers import is_entries, is_utf16
from ddp_doctor.model.report import LogsReport

LINES = ("step 1 loss 2.0", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
TEXT = "\r\n".join(LINES) + "\r\n"
JOURNAL = [{"__REALTIME_TIMESTAMP": "1", "_HOSTNAME": "node1", "MESSAGE": [*line.encode()]} for line in LINES]
PY_SPY = """Process 4711: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    wait (threading.py:320)
    all_reduce (torch/distributed/distributed_c10d.py:2801)
    sync_metrics (train.py:88)
    <module> (train.py:140)
Thread 4712 (active): "loader"
    read (data.py:3)
"""


def report_on(tmp_path: Path, content: bytes) -> LogsReport:
    (tmp_path / "job.out").write_bytes(content)
    report = logs([str(tmp_path / "job.out")]).report
    assert isinstance(report, LogsReport)
    return report


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode("utf-16"),
        TEXT.encode("utf-16-le"),
        b"\xfe\xff" + TEXT.encode("utf-16-be"),
        TEXT.encode("utf-16-be"),
        "\n".join(map(json.dumps, JOURNAL)).encode(),
        json.dumps({"events": [{"timestamp": 1, "message": line} for line in LINES]}).encode(),
        json.dumps([{"ts": 1, "log": line} for line in LINES]).encode(),
    ],
    ids=["utf-16", "utf-16-le", "utf-16-be with mark", "utf-16-be", "journald", "one object", "one list"],
)
def test_cause_is_found_in_other_formats(tmp_path: Path, content: bytes):
    report = report_on(tmp_path, content)

    assert [cause.name for cause in report.causes] == ["gpu-out-of-memory"]
    assert report.causes[0].lines[0].text == LINES[1]


STEPS = "".join(f"step {number} loss 2.0 {'x' * 90}\n" for number in range(30_000))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param((STEPS + TEXT).encode("utf-16"), id="utf-16"),
        pytest.param((STEPS + TEXT).encode("utf-16-be"), id="utf-16-be"),
        pytest.param(
            "".join(
                json.dumps({"message": line, "__REALTIME_TIMESTAMP": "1"}) + "\n"
                for line in (STEPS + TEXT).splitlines()
            ).encode(),
            id="journald",
        ),
    ],
)
def test_file_in_another_format_is_read_in_chunks(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_reading, "_LARGEST_WHOLE_BYTES", 1 << 20)

    report = report_on(tmp_path, content)

    assert [cause.name for cause in report.causes] == ["gpu-out-of-memory"]
    assert report.causes[0].lines[0].line == 30_002


def test_entry_with_half_a_character_does_not_hide_other_entries(tmp_path: Path):
    entries = [{"message": "step \ud83d", "__REALTIME_TIMESTAMP": "1"}, *({"message": line} for line in LINES)]

    report = report_on(tmp_path, "".join(json.dumps(entry) + "\n" for entry in entries).encode())

    assert [cause.name for cause in report.causes] == ["gpu-out-of-memory"]


def test_host_of_a_journal_entry_is_the_node(tmp_path: Path):
    report = report_on(tmp_path, "\n".join(map(json.dumps, JOURNAL)).encode())

    assert report.summary == "Failed: GPU of node1 is out of memory: 2.00 GiB requested."


def test_py_spy_dump_names_the_line_of_the_job_in_the_main_thread(tmp_path: Path):
    report = report_on(tmp_path, PY_SPY.encode())

    assert report.exit_code == 3
    assert "process 4711 is in all_reduce, called at train.py:88 in sync_metrics" in report.summary
    assert "data.py" not in report.summary


def test_zero_bytes_after_a_crash_are_not_utf16():
    assert not is_utf16(b"\0" * 4096 + TEXT.encode())
    assert not is_utf16(TEXT.encode())


def test_json_lines_with_two_keys_for_text_are_read_line_by_line():
    assert not is_entries(b'{"message": "step 1", "text": "step 1"}\n{"message": "step 2", "text": "step 2"}\n')
