"""Dumps of the flight recorder as files: their kinds, ranks and faults, and malicious pickles."""

import io
import json
import os
import pickle
import pickletools
import resource
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_doctor.parse.flight_recorder import is_dump, read_dump
from ddp_doctor.parse.plain_pickle import NotPlainData, plain_data
from tests.features.jobs.logs.dumps import DUMPS, as_json, as_pickle

_DUMP = DUMPS["missing"][0]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_of_each_protocol_equals_the_json(protocol: int):
    from_json = read_dump(as_json(_DUMP), "trace_rank_0", 1.0)
    from_pickle = read_dump(as_pickle(_DUMP, protocol), "trace_rank_0", 1.0)

    assert from_json.problem is None
    assert from_pickle == from_json.model_copy(update={"frames": from_pickle.frames})
    assert from_pickle.frames == (
        "/home/me/train.py:31 in main",
        "/opt/site-packages/torch/distributed/c10d.py:3 in all_reduce",
    )


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("/tmp/nccl_trace_rank_3", 3),
        ("a/.cache/torch/comm_lib_trace_rank_12", 12),
        ("d.tar:node7/rank3_host12.json", 3),
        ("dumps/3.json", 3),
        ("dumps/fr_5", 5),
        ("rank_6/trace.json", 6),
        ("dumps/rank_99999999999", None),
        ("dumps/trace", None),
        ("run2024/trace.json", None),
        ("3_node12.json", 3),
    ],
)
def test_rank_is_taken_from_the_file_name(name: str, rank: int | None):
    assert read_dump(as_json(_DUMP), name, None).rank == rank


def test_dumps_are_recognized_by_contents_and_empty_ones_by_name():
    for data in (as_json(_DUMP), as_pickle(_DUMP), as_pickle(_DUMP, 0), as_pickle(_DUMP, 5)):
        assert is_dump(data[:4096], "any")
    for name in ("nccl_trace_rank_3", "/x/comm_lib_trace_rank_0", "fr_rank_3", "3.json", "rank3_host.json"):
        assert is_dump(b"", name), name
    for head, name in (
        (b"", "job.out"),
        (b"", "rank3.log"),
        (b"W1123 pg_config is not set", "nccl_trace_rank_3"),
        (b'{"readings": []}', "3.json"),
        (pickle.dumps({"a": 1}), "model.pkl"),
    ):
        assert not is_dump(head, name), name


#: The dump of each rank that torch 2.9.1 writes at a timeout if TORCH_FR_BUFFER_SIZE is not set.
_OFF = {"version": "2.10", "pg_config": {}, "comm_lib_version": "", "pg_status": {}, "entries": []}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the file is empty"),
        (b"\0" * 87, "the file contains only whitespace or NUL bytes"),
        (as_json(_DUMP)[:-40], "the file is truncated"),
        (as_pickle(_DUMP)[:-40], "the file is truncated"),
        (pickle.dumps([1]), "it has no flight recorder entries"),
        (b'{"a": 1}', "it has no flight recorder entries"),
        (as_pickle(_OFF), "it has no entries because TORCH_FR_BUFFER_SIZE was not set"),
        (b'{"entries" 1}', "it is damaged: line 1 is not JSON"),
        (b'{"entries":' + b"[" * 100_000 + b"]}", "it is damaged: its JSON is nested too deeply"),
        (b"cos\nsystem\n.", "the pickle was not read: the instruction at byte 0 (opcode c) is not plain data"),
    ],
)
def test_fault_of_a_file_is_described_in_plain_words(data: bytes, problem: str):
    assert read_dump(data, "trace_rank_3", None).problem == problem


def test_newer_or_foreign_dump_is_read_by_its_keys():
    dump = {**_DUMP, "version": "3.1", "host": {"name": "n1"}, "pg_config": [], "pg_status": None}
    dump["entries"] = [
        {**entry, "profiling_name": f"hccl:{entry['profiling_name'].split(':')[1]}", "new": [1]}
        for entry in dump["entries"]
    ]
    fact = read_dump(as_json(dump), "rank0.json", None)

    assert (fact.version, fact.problem) == ("3.1", None)
    assert [entry.op for entry in fact.groups[0].entries] == ["all_reduce"] * 3


def test_long_dump_is_read_around_the_first_open_collective_and_the_newest():
    entry = _DUMP["entries"][0]
    entries = [
        {**entry, "record_id": 5000 + seq, "collective_seq_id": seq, "retired": seq < 1000} for seq in range(1, 2001)
    ]
    fact = read_dump(as_json({**_DUMP, "entries": entries}), "rank0.json", None)

    (group,) = (group for group in fact.groups if group.name == "0")
    kept = [entry.seq for entry in group.entries]
    assert kept == [*range(984, 1008), *range(1993, 2001)]
    assert (group.highest_seq, group.wrapped) == (2000, True)


# --- pickles that attack -----------------------------------------------------------------------------


class _Touches:
    """Its pickle creates a file if a loader allows it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


def hostile(path: str) -> Iterator[bytes]:
    """Yield some 200 pickles that run code, use much memory or time, or are damaged."""
    yield from (pickle.dumps({"entries": [_Touches(path)]}, protocol) for protocol in range(6))
    calls = (
        f"cos\nmkdir\n(V{path}\ntR.",
        f"(V{path}\nios\nmkdir\n.",
        f"(cos\nmkdir\nV{path}\no.",
        f"Pmodule {path}\n.",
    )
    yield from (call.encode() for call in calls)
    yield from (b"\x80\x02\x82\x01.", b"\x80\x02\x83\x01\x01.", b"\x80\x02\x84\x01\x01\x01\x01.", b"\x80\x02NQ.")
    yield from (b"\x80\x02}}b.", b"\x80\x04\x8c\x02os\x8c\x06system\x93.", b"\x80\x02))\x81.", b"\x80\x04)}\x92.")
    yield from (b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".", b"\x80\x05\x97.", b"\x80\x05N\x98.")
    yield b"\x80\x04\x8d" + struct.pack("<Q", 2**60) + b"x."
    yield b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"N."
    yield (b"\x80\x02N" + b"r\xff\xff\xff\x7f" + b"N" + b"r\xff\xff\xff\xff" + b".")  # memos of 2 billion places
    yield b"\x80\x02\x8b" + struct.pack("<i", 2**20) + b"\xff" * 2**20 + b"."
    yield b"L" + b"9" * 10**6 + b"L\n."
    yield b"I" + b"9" * 10**6 + b"\n."
    yield b"\x80\x02" + b"]" * 10**5 + b"." + b""
    yield b"\x80\x02]" + b"(" * 10**5 + b"e" * 10**5 + b"."
    yield b"\x80\x02)" + b"\x85" * 10**5 + b"."
    yield b"\x80\x02}" + b")" + b"\x85" * 10**5 + b"Ns."  # a key whose hash takes the stack
    laughs = b"\x80\x02]q\x00" + b"".join(b"](" + b"h%c" % at * 10 + b"eq%c" % (at + 1) for at in range(100)) + b"."
    yield laughs
    yield b"\x80\x02}(" + b"X\x07\x00\x00\x00entries" + laughs[2:-1] + b"u."
    yield b"\x80\x02]q\x00(" + b"h\x00" * 10**5 + b"e."
    for opcode in pickletools.opcodes:  # each opcode on an empty stack and after a mark
        yield b"\x80\x02" + opcode.code.encode("latin-1") + b"\x01\n\x00\x00.\n."
        yield b"\x80\x02(" + opcode.code.encode("latin-1") + b"\x00."


def test_no_pickle_runs_code_or_takes_much_time_or_memory(tmp_path):
    path = str(tmp_path / "touched")
    memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pickles = list(hostile(path))
    assert len(pickles) > 150

    for data in pickles:
        started = time.process_time()
        fact = read_dump(data, "trace_rank_0", None)
        assert time.process_time() - started < 1.0, data[:40]
        assert fact.problem is not None or not fact.groups, data[:40]
    assert not Path(path).exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kb < 200 * 1024
    with pytest.raises(FileNotFoundError):  # what Python's own loader makes of the first
        pickle.load(io.BytesIO(pickle.dumps(_Touches(str(tmp_path / "no" / "folder")))))


def test_runs_of_digits_just_below_the_limit_are_read_quickly():
    data = pickle.dumps([str(number % 10) * 4299 for number in range(100)], protocol=2)
    started = time.process_time()

    assert len(plain_data(data)) == 100
    assert time.process_time() - started < 0.5  # a search that begins again at each digit takes longer


def test_dump_truncated_at_any_byte_is_reported_as_damaged():
    for protocol in (0, 2, 4):
        data = as_pickle({**_DUMP, "entries": _DUMP["entries"][:1]}, protocol)
        for length in range(len(data)):
            with pytest.raises(NotPlainData):
                plain_data(data[:length])
    text = json.dumps(_DUMP["entries"][0]).encode()
    assert all(read_dump(b'{"entries": [' + text[:length], "rank0.json", None).problem for length in range(len(text)))
