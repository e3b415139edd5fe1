"""`ddp-doctor watch`: the command runs as it does without the watcher, and a failure is explained."""

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.features.jobs.facts import JobLogFact
from ddp_doctor.features.jobs.logs.use_case import logs
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[4]

FAILING = "echo 'RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB' >&2; exit 1"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ddp-doctor"


@pytest.fixture
def watching(tmp_path: Path, state: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start the watcher with a command in its own process group, as a shell does."""
    started = []

    def watch(*command: str, **given: Any) -> "subprocess.Popen[str]":
        env = {**os.environ, "XDG_STATE_HOME": str(state.parent), **given.pop("env", {})}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | given
        argv = (sys.executable, "-m", "ddp_doctor", "watch", *command)
        process = subprocess.Popen(argv, text=True, env=env, start_new_session=True, cwd=tmp_path, **streams)
        started.append(process)
        return process

    yield watch
    for process in started:
        process.kill()
        process.communicate()


def ended(process: "subprocess.Popen[str]") -> tuple[str, str, int]:
    """Return the output and errors without the watcher's own lines, and the exit code."""
    out, err = process.communicate(timeout=LIMIT_S)
    own = [line for line in err.splitlines(keepends=True) if not line.startswith("ddp-doctor: ")]
    return out, "".join(own), process.returncode


def wait_for(path: Path, text: str) -> None:
    wait_until(lambda: path.exists() and text in path.read_text(), f"{text!r} in {path}")


def kept(state: Path) -> list[Path]:
    return sorted((state / "watch").iterdir())


@pytest.mark.parametrize(
    ("act", "how"),
    [("os.kill(os.getpid(), 9)", "was killed by SIGKILL"), ("raise OSError('broken')", "exited with code 70")],
)
def test_failure_is_reported_if_its_output_could_not_be_read(tmp_path, state, act, how):
    (tmp_path / "broken.py").write_text(
        "import os\n"
        "from ddp_doctor.__main__ import main\n"
        "from ddp_doctor.features.jobs.watch import watching\n"
        "def judge(*_, **__):\n"
        f"    {act}\n"
        "watching.judge_the_end = judge\n"
        "main()\n"
    )
    env = {**os.environ, "XDG_STATE_HOME": str(state.parent), "PYTHONPATH": str(ROOT)}
    with (tmp_path / "output").open("w") as output:
        argv = (sys.executable, tmp_path / "broken.py", "watch", "--", "sh", "-c", FAILING)
        done = subprocess.run(argv, env=env, stdout=output, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "exited with code 1" in last
    assert f"The process that read its output {how}; to read the output, run: ddp-doctor logs" in last


def test_output_of_a_healthy_command_is_unchanged_and_no_files_remain(watching, state):
    process = watching(
        "--", "sh", "-c", 'printf "a\\0\\377"; printf "\\r b" >&2; readlink /proc/self/fd/0; echo $NCCL_DEBUG'
    )
    out, err = process.stdout.buffer.read(), process.stderr.buffer.read()

    assert process.wait(LIMIT_S) == 0
    assert out == b"a\0\377" + str(Path("/proc/self/fd/0").readlink()).encode() + b"\nINFO\n"
    assert [line for line in err.split(b"\n") if not line.startswith(b"ddp-doctor: ")] == [b"\r b"]
    assert kept(state) == []


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("#!/bin/sh\nexit 7", 7),
        ("exit 5", 5),
        ("#!/bin/sh\nkill -SEGV $$", -signal.SIGSEGV),
        ("#!/bin/sh\nkill -9 $$", -9),
    ],
)
def test_exit_code_or_signal_of_the_command_is_passed_on(watching, tmp_path, script, code):
    (tmp_path / "cmd").write_text(script)
    (tmp_path / "cmd").chmod(0o755)

    assert ended(watching("./cmd"))[2] == code


@pytest.mark.parametrize(("name", "code"), [("nosuch", 127), ("./folder", 126), ("", 127)])
def test_command_that_cannot_start_fails_like_in_a_shell(watching, tmp_path, state, name, code):
    (tmp_path / "folder").mkdir()
    process = watching("--", name)
    err = process.stderr.read()

    assert process.wait(LIMIT_S) == code
    assert f"ddp-doctor: {shlex.quote(name)}: " in err
    assert name == "" or kept(state) == []


TELLING = """
import os, signal
told = {signal.SIGUSR1, signal.SIGINT, signal.SIGCONT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, told)
print(*map(os.isatty, range(3)), flush=True)
while (number := signal.sigwait(told)) != signal.SIGTERM:
    print(number.name, flush=True)
"""


@pytest.mark.parametrize("to_group", [True, False])
def test_signal_to_the_group_or_to_the_watcher_reaches_the_command_once(watching, to_group):
    process = watching("--", sys.executable, "-S", "-c", TELLING)
    process.stdout.readline()
    send = os.killpg if to_group else os.kill

    send(process.pid, signal.SIGUSR1)
    heard = [process.stdout.readline()]
    send(process.pid, signal.SIGINT)
    heard.append(process.stdout.readline())
    send(process.pid, signal.SIGTERM)

    assert heard == ["SIGUSR1\n", "SIGINT\n"]
    assert ended(process) == ("", "", 0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_command_continues_if_the_watcher_is_killed_or_stopped(watching, tmp_path, how):
    os.mkfifo(tmp_path / "fifo")
    process = watching("--", "sh", "-c", "echo begun; read x < fifo; echo done > file")
    process.stdout.readline()

    process.send_signal(how)
    (tmp_path / "fifo").write_text("go\n")

    wait_for(tmp_path / "file", "done")
    process.send_signal(signal.SIGCONT)
    assert process.wait(LIMIT_S) == (-9 if how == signal.SIGKILL else 0)


@pytest.fixture
def shell(tmp_path: Path, state: Path) -> Iterator[Callable[..., str]]:
    """A shell on a terminal: type keys, and return the output until a text has come."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(XDG_STATE_HOME=str(state.parent), PS1="ready> ", PYTHONPATH=str(ROOT))
        os.chdir(tmp_path)
        os.execvp("bash", ("bash", "--norc", "--noprofile", "-i"))

    def type_in(keys: str, until: str) -> str:
        os.write(terminal, keys.encode())
        seen = ""
        while until not in seen:
            assert select.select((terminal,), (), (), LIMIT_S)[0], seen
            seen += os.read(terminal, 4096).decode()
        return seen

    type_in("", "ready> ")
    # Otherwise, after the signal of a key, the kernel drops pending output, which may be the answer to the signal.
    type_in("stty noflsh\n", "ready> ")
    yield type_in
    os.close(terminal)
    os.waitpid(pid, 0)


@pytest.mark.smoke
def test_ctrl_c_arrives_once_and_ctrl_z_stops_both_until_fg(shell, tmp_path):
    (tmp_path / "cmd.py").write_text(TELLING)

    shell(f"'{sys.executable}' -m ddp_doctor watch '{sys.executable}' -S cmd.py\n", "True True True")
    assert "Stopped" in shell("\x1a", "ready> ")
    assert shell("fg\n", "SIGCONT").count("SIGCONT") == 1
    assert shell("\x03", "SIGINT").count("SIGINT") == 1
    assert shell("\x1c", "ready> ").count("Quit") == 1


@pytest.mark.smoke
def test_failure_is_explained_by_the_commands_own_output_in_its_file(watching, tmp_path, state):
    """Earlier lines of the file do not count, and the watcher's report comes last."""
    log = tmp_path / "log"
    log.write_text("torch.distributed.DistNetworkError: The server socket has failed to listen\n" * 9)
    with log.open("a") as file:
        process = watching("--", "sh", "-c", FAILING, stdout=file, stderr=file)
        assert process.wait(LIMIT_S) == 1

    said = log.read_text().partition("2.00 GiB\n")[2]
    assert said.startswith("ddp-doctor: `sh -c ")
    assert "DDJ1" in said
    assert "is out of memory" in said.splitlines()[-1]
    assert "listen" not in said
    assert kept(state) == []


def test_limits_are_explained_before_srun_and_after_its_failure(watching, tmp_path):
    (tmp_path / "srun").write_text(FAILING)
    (tmp_path / "srun").chmod(0o755)
    process = watching("--", "./srun")

    assert process.wait(LIMIT_S) == 1
    said = process.stderr.read().splitlines()
    assert "use `srun ddp-doctor watch -- …`" in said[0]
    assert "--keep-output" in said[-1]


def test_kept_output_is_passed_on_unchanged_and_explains_the_failure(watching, state):
    process = watching("--keep-output", "--", "sh", "-c", f"printf 'a\\r\\t'; {FAILING}", stderr=subprocess.STDOUT)
    said = process.stdout.buffer.read().decode()

    assert process.wait(LIMIT_S) == 1
    assert "a\r\tRuntimeError: CUDA out of memory." in said
    assert [path.name for path in kept(state)[0].iterdir()] == ["stdout-0.0.txt"]
    assert "is out of memory" in said.splitlines()[-1]


def test_command_with_kept_output_gets_sigpipe_if_its_reader_is_gone(watching):
    process = watching("--keep-output", "--", "sh", "-c", "while echo line; do :; done")
    process.stdout.readline()
    process.stdout.close()

    assert process.wait(LIMIT_S) == -signal.SIGPIPE


def test_nested_watcher_and_second_task_only_execute_the_command(watching, state):
    inner = (sys.executable, "-m", "ddp_doctor", "watch", "--", "sh", "-c", "ps -o comm= $PPID; exit 4")
    out, _, code = ended(watching("--", *inner))
    assert (out, code) == ("ddp-watch\n", 4)

    slurm = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
    slurm["SLURM_STEP_TASKS_PER_NODE"] = "2"
    task = watching("--", "sh", "-c", "echo $$ $NCCL_DEBUG_FILE", env=slurm)
    out, err, code = ended(task)

    folder = kept(state)[-1]
    assert folder.name.startswith("slurm-4711-0-0-")
    assert (out, err, code) == (f"{task.pid} {folder}/nccl.%h.%p.log\n", "", 0)
    assert (folder / "task-1").read_text() == str(task.pid)


def test_failure_of_another_task_is_reported_if_the_first_task_succeeds(watching, tmp_path):
    slurm = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"}
    os.mkfifo(tmp_path / "fifo")
    error = json.dumps({"message": {"message": "KeyError: x", "extraInfo": {"timestamp": "1790000000"}}})
    script = f"echo begun; read x < fifo; echo '{error}' > $TORCHELASTIC_ERROR_FILE; exit 1"
    other = watching("sh", "-c", script, env={**slurm, "SLURM_PROCID": "1", "SLURM_LOCALID": "1"})
    assert other.stdout.readline() == "begun\n"

    script = "echo go > fifo; until grep -qs . ${TORCHELASTIC_ERROR_FILE%0.json}1.json; do sleep 0.05; done"
    first = watching("sh", "-c", script, env={**slurm, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})

    said = first.stderr.read()
    assert (first.wait(LIMIT_S), other.wait(LIMIT_S)) == (0, 1)
    assert "exited normally, but another task on this node failed" in said
    assert "KeyError: x" in said


def test_lines_of_the_watcher_are_not_read_as_output_of_the_job(tmp_path):
    file = tmp_path / "out"
    file.write_text("step 1\nstep 2\n0: ddp-doctor: - RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")

    outcome = logs([str(file)])
    assert [finding.name for finding in outcome.report.findings] == ["end-not-shown"]
    assert [rank.last and rank.last.text for rank in outcome.recording.facts(JobLogFact)[0].fact.ranks] in (
        [],
        ["step 2"],
    )
