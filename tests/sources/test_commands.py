"""Real processes that misbehave in the ways commands do on an unhealthy node."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_doctor.sources import commands
from ddp_doctor.sources.commands import OUTPUT_LIMIT_BYTES, find_executable, run_command
from ddp_doctor.starters.interruption import SIGNALS, Interrupted, interruptible
from tests.waiting import LIMIT_S, limits_s, wait_until

ENV = {"PATH": "/usr/bin:/bin"}


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_output_and_exit_code_of_an_ordinary_command():
    result = run_command(["sh", "-c", "echo out; echo err >&2; exit 3"], ENV, LIMIT_S)
    assert (result.status, result.returncode, result.stdout, result.stderr) == ("ended", 3, "out\n", "err\n")
    assert not result.ok


def test_a_command_that_timed_out_shows_how_long_it_had_no_processor():
    """Two loops take turns on one processor."""
    loops = "import os; os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1]); os.fork()\nwhile True: pass"
    result = run_command(python(loops), ENV, 0.3)

    assert result.status == "timed_out"
    assert result.queued_s > 0.0


def test_the_command_sees_the_given_environment_and_no_other(monkeypatch):
    monkeypatch.setenv("LEAKED", "1")
    result = run_command(["env"], {"PATH": "/usr/bin:/bin", "GIVEN": "2"}, 5)
    assert result.ok
    assert set(result.stdout.split()) == {"PATH=/usr/bin:/bin", "GIVEN=2"}


def test_standard_input_is_empty():
    assert run_command(["cat"], ENV, LIMIT_S).ok


def test_command_that_cannot_start_is_missing_with_the_reason(tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "junk").write_bytes(b"\x00\x01\x02")
    (tmp_path / "junk").chmod(0o755)
    reasons = {"no-such-command-here": "no-such-command-here", "script": "", "junk": "format"}
    for command, reason in reasons.items():
        path = tmp_path / command
        result = run_command([str(path) if path.exists() else command], ENV, LIMIT_S)
        assert result.status == "missing", command
        assert reason in result.stderr.lower()
    assert run_command(["echo", "a\0b"], ENV, LIMIT_S).status == "missing"


def test_relative_directory_in_path_is_not_searched(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho planted\n")
    tool.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert find_executable("nvidia-smi", {"PATH": f".::{tmp_path}"}) == str(tool)
    assert find_executable("nvidia-smi", {"PATH": ".::bin"}) is None


def test_without_path_the_usual_folders_are_searched():
    assert run_command(["sh", "-c", "exit 0"], {}, 5).ok


def test_bytes_that_are_not_utf8_are_replaced():
    assert run_command(["printf", r"a\377b"], ENV, LIMIT_S).stdout == "a\ufffdb"


def test_expired_deadline_starts_no_process():
    assert run_command(["sh", "-c", "exit 0"], ENV, 0).status == "timed_out"


def test_a_hung_command_that_ignores_sigterm_is_killed_in_time_and_keeps_its_output():
    code = """
        import os, signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(os.getpid(), flush=True)
        signal.pause()
    """
    result = next(result for limit_s in limits_s(0.1) if (result := run_command(python(code), ENV, limit_s)).stdout)
    assert (result.status, result.returncode) == ("timed_out", None)
    wait_until(lambda: not alive(int(result.stdout)))


def test_grandchild_of_a_hung_command_is_killed():
    hangs = ["sh", "-c", "sleep 1000 & echo $!; wait"]
    result = next(result for limit_s in limits_s(0.1) if (result := run_command(hangs, ENV, limit_s)).stdout)
    assert result.status == "timed_out"
    wait_until(lambda: not alive(int(result.stdout)))


def test_a_background_process_that_holds_the_pipe_neither_delays_nor_survives():
    result = run_command(["sh", "-c", "yes & echo $! >&2"], ENV, 10 * LIMIT_S)  # yes never ends
    assert result.ok
    wait_until(lambda: not alive(int(result.stderr)))


def test_command_that_prints_forever_uses_bounded_memory():
    result = run_command(["yes"], ENV, 0.2)
    assert result.status == "timed_out"
    assert len(result.stdout) <= OUTPUT_LIMIT_BYTES


def test_output_beyond_the_limit_is_dropped_and_the_command_still_ends(monkeypatch):
    monkeypatch.setattr(commands, "OUTPUT_LIMIT_BYTES", 1000)
    result = run_command(["head", "-c", "300000", "/dev/zero"], ENV, LIMIT_S)
    assert result.ok
    assert len(result.stdout) == 1000


def test_a_command_that_closes_its_output_and_lingers_is_followed_to_its_end():
    result = run_command(["sh", "-c", "exec >&- 2>&-; sleep 0.2; exit 7"], ENV, LIMIT_S)
    assert (result.status, result.returncode) == ("ended", 7)


def test_a_command_killed_by_a_signal_reports_it():
    assert run_command(["sh", "-c", "kill -SEGV $$"], ENV, LIMIT_S).returncode == -signal.SIGSEGV


def test_stopped_command_is_continued():
    result = run_command(["sh", "-c", "kill -STOP $$; echo later"], ENV, LIMIT_S)
    assert (result.status, result.stdout) == ("ended", "later\n")


def test_commands_end_with_the_agent_even_when_it_is_killed(tmp_path):
    code = f"""
        from ddp_doctor.sources.commands import run_command
        script = "echo $$ > pid.new; mv pid.new pid; exec sleep 60"
        run_command(["sh", "-c", "cd {tmp_path}; " + script], {{}}, 60)
    """
    agent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        wait_until((tmp_path / "pid").exists)
        pid = int((tmp_path / "pid").read_text())
        assert alive(pid)
    finally:
        agent.kill()
        agent.wait()
    wait_until(lambda: not alive(pid))


@pytest.fixture
def signals_as_before() -> Iterator[None]:
    """They stay ignored after a run."""
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_as_before")
def test_interrupt_leaves_no_command_behind(tmp_path):
    mark = tmp_path / "pid"

    def interrupt() -> None:
        wait_until(lambda: mark.exists() and mark.read_text().strip())
        signal.raise_signal(signal.SIGINT)

    def run() -> None:
        with interruptible() as interruption:
            interruption.arm()
            run_command(["sh", "-c", f"echo $$ > {mark}; exec sleep 60"], ENV, LIMIT_S)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted):
        run()
    wait_until(lambda: not alive(int(mark.read_text())))


def test_many_commands_from_threads_at_once_all_answer():
    answers: list[str] = []

    def ask(number: int) -> None:
        answers.append(run_command(["echo", str(number)], ENV, LIMIT_S).stdout.strip())

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, answers)) == list(range(12))


def test_no_descriptor_is_leaked():
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        run_command(["echo", "x"], ENV, LIMIT_S)
        run_command(["no-such-command-here"], ENV, LIMIT_S)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_process_that_does_not_exit_is_abandoned():
    process = subprocess.Popen(["sleep", "1000"])
    try:
        assert commands._reap(process, 0.1) is None
    finally:
        process.kill()
        process.wait()


def test_commands_work_with_sigchld_ignored():
    code = """
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        from ddp_doctor.sources.commands import run_command
        print(run_command(["echo", "answer"], {}, 10))
    """
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert "status='ended'" in done.stdout
    assert "answer" in done.stdout
    assert done.stderr == ""


def test_a_tracer_of_the_thread_is_not_called_in_the_child_before_exec():
    parent, before = os.getpid(), sys.gettrace()

    def tracer(_frame: object, _event: str, _arg: object) -> None:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # coverage would wait for a lock here

    sys.settrace(tracer)
    try:
        result = run_command(("true",), ENV, LIMIT_S)
        kept = sys.gettrace()
    finally:
        sys.settrace(before)

    assert result.ok, result
    assert kept is tracer
