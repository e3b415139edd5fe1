"""JSON from other programs: every reader reads or refuses every value in every place, and none of them crashes."""

import json
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.app import UsageError, recordings
from ddp_doctor.cli import commands
from ddp_doctor.cli.outputs import Outputs
from ddp_doctor.features.fleet.compare.use_case import compare
from ddp_doctor.features.fleet.comparison import comparison_with
from ddp_doctor.features.fleet.report import FleetReport
from ddp_doctor.features.fleet.use_case import fleet_outcome, read_fleet
from ddp_doctor.features.jobs.logs.use_case import read_job
from ddp_doctor.features.jobs.sources import live_gpus, live_stacks
from ddp_doctor.model.context import CommandResult
from ddp_doctor.parse.json_value import NotJson, json_object, json_value
from ddp_doctor.sources import sockets
from ddp_doctor.sources.machine import LiveContext
from tests.features.fleet.test_fleet import made
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.recordings import path_of

#: Possible contents of a file in place of ddp-doctor's own JSON.
FILES = {
    "null": b"null",
    "a number": b"5",
    "a boolean": b"true",
    "a text": b'"text"',
    "an empty list": b"[]",
    "an object in a list": b"[{}]",
    "an empty object": b"{}",
    "not a number": b"NaN",
    "infinity": b"-Infinity",
    "a float too large": b"1e400",
    "an integer too long": b'{"run_id": ' + b"9" * 5_000 + b"}",
    "brackets without end": b"[" * 20_000,
    "brackets in brackets": b"[" * 20_000 + b"]" * 20_000,
    "objects without end": b'{"readings":' * 20_000,
    "a mark of byte order": b'\xef\xbb\xbf{"a": 1}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "half of UTF-16": '{"a": 1}'.encode("utf-16")[:-1],
    "UTF-32": '{"a": 1}'.encode("utf-32"),
    "half a character": b'{"verdict": "\\ud800"}',
    "no text": b'\x89PNG\r\n"\xff"',
    "nothing": b"",
    "blanks": b" \r\n",
    "zeros": b"\0" * 100,
    "a key twice": b'{"run_id": 1, "run_id": 2}',
    "cut off": b'{"verdict": "hea',
    "two values": b"{} {}",
}
#: Values in place of a value of another kind.
VALUES = (
    *("null", "true", "5", "-1", "0.5", "1e308", "1e400", "NaN", '""', '"text"', '"\\ud800\\u0000"', "[]"),
    *("[null]", "[[1]]", "{}", '{"a": null}', "9" * 19, "9" * 400, "[" * 150 + "]" * 150),
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value[:2] if isinstance(value, list) else ())
    for key, inner in pairs:
        yield from _places(inner, (*at, key))


def _replaced(text: str, each: int = 3) -> Iterator[str]:
    """Yield the document with this number of VALUES in each of its places, alternately."""
    for number, place in enumerate(_places(json.loads(text))):
        document = [json.loads(text)]
        inner: Any = document
        for key in (*(0, *place)[:-1],):
            inner = inner[key]
        inner[(0, *place)[-1]] = "HERE"
        changed = json.dumps(document[0])
        for turn in range(number * each, number * each + each):
            yield changed.replace('"HERE"', VALUES[turn % len(VALUES)])


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_every_text_is_a_value_or_a_sentence(content: bytes):
    for read in (json_value, json_object):
        why = None
        try:
            json.dumps(read(content), allow_nan=False).encode()
        except NotJson as error:
            why = error
        assert why is None or str(why)


def test_marks_of_byte_order_and_utf_16_are_read_and_half_a_character_is_replaced():
    for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-32"):
        assert json_value('{"a": "\u00e9"}'.encode(encoding)) == {"a": "\u00e9"}, encoding
    assert json_value('\ufeff["\\ud83d\\ude00", "\\ud800", 12345678901234567890]') == [
        "\U0001f600",
        "?",
        12345678901234567890,
    ]


#: By module; for other modules, inputs that are not only JSON files.
_OF_PROGRAMS = ("flight_recorder", "ras", "measured", "live", "accelerators", "packet_filter")


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(target, id=target.name)
        for target in TARGETS
        if target.name.startswith((*_OF_PROGRAMS, "software.torch_folder", "software.nccl_answer", "file_kinds"))
    ],
)
def test_every_value_in_every_place_of_foreign_json_is_read_or_refused(target: Target):
    texts = [content.decode("latin-1") for content in FILES.values()]
    for seed in target.seeds:
        if seed.startswith("{"):
            one = seed.splitlines()[0] if seed.count('"coll_perf"') > 1 else seed.replace("1\n", "1,")
            texts += _replaced(one, len(VALUES) if len(one) < 1000 else 3)
    for text in texts:
        try:
            target.call(text)
        except target.refuses:
            pass
        except Exception as error:
            error.add_note(f"was given {text[:500]}")
            raise


_PY_SPY = '[{"os_thread_id": 1, "owns_gil": true, "frames": [{"filename": "a.py", "line": 1, "name": "f"}]}]'
_GPU_USE = '{"error": null, "text": "", "gpus": [{"index": 0, "busy_percent": 9, "bytes_of": {"11": 1}}]}'


def test_every_value_in_the_answers_of_py_spy_and_nvml_is_read_or_refused(monkeypatch):
    for text in (*_replaced(_PY_SPY, len(VALUES)), *_replaced(_GPU_USE, len(VALUES))):
        answer = CommandResult((), "ended", 0, text)
        monkeypatch.setattr(LiveContext, "child", lambda *_, answer=answer: answer)
        monkeypatch.setattr(live_stacks, "run_command", lambda *_, answer=answer: answer)
        monkeypatch.setattr(live_stacks, "find_executable", lambda *_: "py-spy")
        live_gpus.gpu_use({}, time.monotonic() + 60)
        live_stacks.stacks([1], {}, time.monotonic() + 60, with_groups=True)


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_every_value_that_a_peer_may_send_is_an_object_or_refused(content: bytes):
    said: object = None
    try:
        said = sockets._object(content)
    except OSError as error:
        said = dict.fromkeys([error.strerror])
    assert isinstance(said, dict)


def _in_folder(path: Path) -> None:
    """Read the file next to a valid one, which always counts: this file counts, or is named once."""
    (path.parent / "good.json").write_text(_good())
    report = fleet_outcome(read_fleet([str(path.parent)], lambda _: None), 0.0).report
    assert isinstance(report, FleetReport)
    assert "good" in {node.hostname for node in report.nodes}
    said = [each.file for each in report.left_out].count(str(path))
    assert said == 1 or (said == 0 and (report.runs == 2 or report.files == 2))


@cache
def _good() -> str:
    return json.dumps(made("good", 1))


USE_CASES: dict[str, Callable[[Path], object]] = {
    "fleet": _in_folder,
    "replay": recordings.replay,
    "compare, the earlier": lambda path: compare(str(path), str(path)),
    "run --baseline": lambda path: comparison_with(str(path)),
    "logs": lambda path: read_job([str(path)]),
    "topology": lambda path: commands.topology(str(path), Outputs()),
    "env --from": lambda path: commands.env(str(path), Outputs()),
}


def _asked(name: str, path: Path, text: bytes) -> None:
    why, given = str(path), text[:500]
    path.write_bytes(text)
    try:
        USE_CASES[name](path)
    except UsageError as error:
        why = str(error)
    except Exception as error:
        error.add_note(f"was given {given!r}")
        raise
    assert str(path) in why, given


@pytest.mark.parametrize("name", USE_CASES)
def test_every_named_file_is_read_or_refused_with_a_sentence(tmp_path, name):
    for content in FILES.values():
        _asked(name, tmp_path / "a.json", content)


#: The smallest of each kind that the doctor writes.
_WRITTEN = {
    "a recording": lambda: path_of("env_vars/ll128-forced").read_text(),
    "a report": lambda: json.dumps(_small_report()),
}


def _small_report() -> dict[str, Any]:
    report = made("bad", 1, "unhealthy")
    report["findings"] = report["findings"][:1]
    report["checks"], report["measurements"] = report["checks"][:1], report["measurements"][:1]
    return report


@pytest.mark.fuzz
@pytest.mark.parametrize(("kind", "name"), [("a recording", "replay"), ("a recording", "fleet"), ("a report", "fleet")])
def test_every_value_in_every_place_of_own_files_is_read_or_refused(tmp_path, kind, name):
    for text in _replaced(_WRITTEN[kind](), 2):
        _asked(name, tmp_path / "a.json", text.encode())


#: These read what another ddp-doctor process has just written; everything else is foreign.
_OWN = (
    *("agents", "ranks", "starters", "templates"),
    *("features/model/user_model/probing", "probing/module_manifest.py", "probing/checkpoints.py"),
    *("checks/ddp", "features/jobs/attach/nodes.py", "cli/run.py"),
    "features/jobs/watch/judging.py",
)


def test_all_foreign_json_is_read_by_one_reader():
    root = Path(app.__file__).parents[1]
    found = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if re.search(r"\bjson\.loads?\(", path.read_text())
    }

    assert {path for path in found if not path.startswith(_OWN)} == {"parse/json_value.py"}
