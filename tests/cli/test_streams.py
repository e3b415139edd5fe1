"""The command line where stdin, stdout or the locale are not what a program hopes for."""

import json
import os
import pty
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.test_cli import doctor
from tests.forked import UNREAD, Forked
from tests.recordings import path_of

HERE = Path(__file__).parent.parent
TOPOLOGY = str(HERE / "samples/topology/classic-two-socket.txt")


@pytest.mark.parametrize(
    "command", [["topology", TOPOLOGY], ["topology", "--svg", "-", TOPOLOGY], ["explain"], ["explain", "DD401"]]
)
def test_a_full_disk_behind_stdout_is_one_sentence_and_exit_2(asked, command):
    done = asked(*command, stdout="/dev/full")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("ddp-doctor: cannot write the output: No space left on device")
    assert "trace" not in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["topology", "--svg", "-", "--json", "-", TOPOLOGY],
        ["run", "--json", "-", "--record", "-"],
        ["replay", "--json", "-", "--settings", "env:-", "x.json"],
    ],
)
def test_two_outputs_on_stdout_are_refused(asked, args):
    done = asked(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "only one output can go to stdout" in done.stderr


def test_ascii_locale_loses_symbols_but_not_the_report():
    strict = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "POSIX"}
    done = doctor("replay", str(path_of("gpu_speed/all-h100-at-low-clocks")), env=strict)
    assert done.returncode == 0
    assert "40 ?C" in done.stdout
    assert done.stderr == ""


def test_a_recording_is_replayed_from_stdin(asked):
    done = asked("replay", "-", text=path_of("gpus/one-lost").read_text())
    assert done.returncode == 1
    assert "DD304" in done.stdout


def test_environment_from_a_pipe_is_evaluated_without_showing_secrets(asked):
    text = "PATH=/bin\nHOME=/\nPWD=/\nNCCL_IB_DISABLE=true\nNCCL_TOKEN=hunter2\nWANDB_API_KEY=hunter2\n"
    done = asked("env", "--from", "-", "--json", "-", text=text)
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert [finding["code"] for finding in report["findings"]].count("DD121") == 1
    assert {row["name"]: row["value"] for row in report["settings"]}["NCCL_TOKEN"] is None
    assert "NCCL_IB_DISABLE" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr


def test_topology_command_reports_only_the_topology(asked):
    done = asked("topology")
    marks = [line for line in done.stdout.splitlines() if line[:4] in (" ok ", " -- ", " !! ", " ?? ")]
    assert [line.split()[1] for line in marks] == ["topology"]


def test_pasted_text_is_not_called_this_node(asked):
    done = asked("topology", TOPOLOGY)
    assert done.stdout.splitlines()[-1].startswith("Found 1 warning: NCCL may copy directly between GPUs")


def test_one_replay_writes_the_settings_in_every_form(asked, tmp_path):
    forms = ("env", "sbatch", "docker", "kubernetes", "torchrun")
    recording = str(path_of("interfaces/docker0-on-both"))
    done = asked("replay", recording, *(word for form in forms for word in ("--settings", f"{form}:{tmp_path / form}")))

    assert done.returncode == 1, done
    last = {path.name: path.read_text().splitlines()[-1] for path in tmp_path.iterdir()}
    assert set(last) == set(forms)
    assert last["docker"] == "-e GLOO_SOCKET_IFNAME=eth0"
    assert last["kubernetes"] == '    value: "eth0"'
    assert last["torchrun"] == "env GLOO_SOCKET_IFNAME=eth0 torchrun"
    for form in ("env", "sbatch"):
        assert "\nexport GLOO_SOCKET_IFNAME=eth0\n" in (tmp_path / form).read_text()


WARNED_SCRIPT = str(HERE / "features/lint/samples/public/dit_train.py")
RECORDING_OF_SICK = str(path_of("gpus/one-lost"))


@pytest.mark.parametrize(
    ("stream", "args", "code"),
    [
        ("stdout", ["--version"], 0),
        ("stdout", ["run", "--help"], 0),
        ("stdout", ["explain"], 0),
        ("stdout", ["explain", "DD401"], 0),
        ("stdout", ["env", "--from", "/dev/null"], 3),
        ("stdout", ["lint", "--fail-on", "warning", WARNED_SCRIPT], 1),
        ("stdout", ["replay", RECORDING_OF_SICK], 1),
        ("stdout", ["replay", "--json", "-", RECORDING_OF_SICK], 1),
        ("stderr", ["replay", "--json", "-", RECORDING_OF_SICK], 1),
        ("stderr", ["explain", "DD000"], 2),
    ],
)
def test_closed_reader_does_not_change_the_exit_code_or_print_an_error(asked, stream, args, code):
    done = asked(*args, **{stream: UNREAD})
    assert done.returncode == code
    assert "-" in args or not done.stderr


@pytest.mark.ranks
def test_run_with_a_closed_reader_continues_and_writes_its_outputs(asked, tmp_path):
    report, state = tmp_path / "report.json", {"XDG_STATE_HOME": str(tmp_path)}
    done = asked("run", "--only", "process_group", "--json", str(report), stdout=UNREAD, env=state)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(report.read_text())["verdict"] == "healthy"


#: Each kind of output: help, words, tables, findings, progress.
_COMMANDS = [
    ["--help"],
    [],
    ["topology", TOPOLOGY],
    ["replay", str(path_of("gpus/one-lost"))],
    ["logs", str(HERE / "samples/topology/classic-two-socket.txt")],
    ["lint", str(HERE / "conftest.py")],
    ["env"],
    ["fleet", str(path_of("gpus/one-lost"))],
]


@pytest.mark.parametrize(
    ("env", "escapes"),
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),  # no-color.org: an empty one counts for nothing
        ({"NO_COLOR": "1", "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "COLORTERM": "truecolor"}, False),
        ({"TERM": "dumb"}, False),
    ],
    ids=str,
)
def test_no_color_and_a_dumb_terminal_get_text_without_escapes(asked, env, escapes, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    env = {"TERM": "xterm-256color"} | env
    said = [_on_a_terminal(asked, command, env) for command in _COMMANDS]

    assert all(said)
    if escapes:
        assert {b"\x1b[1m", b"\x1b[1;31m", b"\x1b[2m"} <= set(re.findall(rb"\x1b\[[\d;]*m", b"".join(said)))
    else:
        assert [command for command, text in zip(_COMMANDS, said, strict=True) if b"\x1b" in text] == []


def _on_a_terminal(asked: Forked, command: list[str], env: dict[str, str]) -> bytes:
    ours, theirs = pty.openpty()
    read = list[bytes]()
    reader = threading.Thread(target=lambda: read.extend(_all_of(ours)))
    reader.start()
    name = os.ttyname(theirs)
    try:
        asked(*command, env=env, stdout=name, stderr=name)
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    return b"".join(read)


def _all_of(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):  # EIO is the end of a terminal
        while data := os.read(terminal, 65536):
            yield data
