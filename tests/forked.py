"""Runs a program in a separate process without importing its modules again, by forking a process that has.

Exit code, streams, environment and child processes are real; only the half second of imports is saved. Tests of the
start itself need a new process.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

#: A stream whose reader left before anything was said.
UNREAD = ""
_SERVER = """
import json, os, sys
before, after = sys.argv[1:]
exec(before)

def opened(number, path):
    if number == 0:
        return os.open(path, os.O_RDONLY)
    if path:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    reader, writer = os.pipe()
    os.close(reader)
    return writer

for line in sys.stdin:
    args, streams, env, folder = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, path in enumerate(streams):
            os.dup2(opened(number, path), number)
        sys.stdin = open(0, closefd=False)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        sys.argv = args
        exec(after)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
#: Replaying it builds the pydantic models, and the first command builds typer's, which each fork would otherwise do.
_RECORDING = Path(__file__).with_name("recordings") / "gpus/one-lost.json"
_DOCTOR = (
    f"""import ahocorasick_rs, functools, rich.console, rich.table, typer
from pathlib import Path; from ddp_doctor.app import recordings
from ddp_doctor.cli import commands, main, run, usage_errors; from ddp_doctor import __main__
from ddp_doctor.features.fleet import use_case
from ddp_doctor.features.lint import use_case
from ddp_doctor.features.jobs.attach import cli, evaluation, nodes, story
from ddp_doctor.features.jobs.logs import cli, report, story, use_case
from ddp_doctor.features.jobs.watch import cli
from ddp_doctor.render import settings_table, terminal, topology
recordings.replay(Path({str(_RECORDING)!r}))
typer.main.get_command = functools.cache(typer.main.get_command)
typer.main.get_command(main.app)""",
    "__main__.main()",
)


class Forked:
    """Runs the program with arguments, as subprocess.run would."""

    def __init__(self, server: "subprocess.Popen[str]", folder: Path, name: str) -> None:
        self._server, self._name = server, name
        self._turn = threading.Lock()  # checks look at the same time
        self._stdin, self._stdout, self._stderr = (folder / name for name in ("stdin", "stdout", "stderr"))

    def __call__(
        self,
        *args: str,
        text: str = "",
        env: Mapping[str, str] | None = None,
        stdout: str | None = None,
        stderr: str | None = None,
        cwd: Path | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """``text`` is its standard input, ``env`` added to the environment; a stream goes to a file of that name."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with self._turn:
            self._stdin.write_text(text)
            streams = [
                str(self._stdin),
                str(self._stdout) if stdout is None else stdout,
                str(self._stderr) if stderr is None else stderr,
            ]
            for own in (self._stdout, self._stderr):
                own.write_text("")
            self._server.stdin.write(
                json.dumps([[self._name, *args], streams, {**os.environ, **(env or {})}, str(cwd or Path.cwd())]) + "\n"
            )
            self._server.stdin.flush()
            code = int(self._server.stdout.readline())
            return subprocess.CompletedProcess(args, code, self._stdout.read_text(), self._stderr.read_text())


@contextmanager
def forked(
    folder: Path, name: str = "ddp-doctor", code: tuple[str, str] = _DOCTOR, env: Mapping[str, str] | None = None
) -> Iterator[Forked]:
    """Yield a process that has run the first half of ``code``; its forks run the other half.

    ``folder`` is for the streams, ``name`` is the name of the program. By default ``code`` is the command line.
    """
    argv = (sys.executable, "-c", _SERVER, *code)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as server:
        yield Forked(server, folder, name)
