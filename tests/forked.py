"""The command line in a process of its own that need not import it again: forked from one that has.

For the many requests that end before anything is tested. Exit code, streams and environment are real; only
the half second of imports is spared. What is about the start itself belongs to a bare process.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SERVER = """
import json, os, sys
from ddp_doctor.cli import commands, lint, main, run

for line in sys.stdin:
    args, streams = json.loads(line)
    child = os.fork()
    if child == 0:
        sys.stdin = open(os.devnull)
        for number, path in enumerate(streams, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["ddp-doctor", *args]
        main.entry()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forked:
    """Runs ``ddp-doctor`` with arguments, as subprocess.run would."""

    def __init__(self, server: "subprocess.Popen[str]", folder: Path) -> None:
        self._server = server
        self._streams = [folder / "stdout", folder / "stderr"]

    def __call__(self, *args: str) -> "subprocess.CompletedProcess[str]":
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([args, [str(path) for path in self._streams]]) + "\n")
        self._server.stdin.flush()
        code = int(self._server.stdout.readline())
        return subprocess.CompletedProcess(args, code, *(path.read_text() for path in self._streams))


@contextmanager
def forked(folder: Path) -> Iterator[Forked]:
    """A process that has imported the command line, for as long as it is needed."""
    argv = (sys.executable, "-c", _SERVER)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield Forked(server, folder)
