"""The current variables of a real process, with and without the right to read its memory."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_doctor.features.jobs.sources.live_process import current_environment

SETS_ITS_RANK = """
import os, sys
os.environ.update(RANK="7", LONG="x" * 9000)
del os.environ["REMOVED"]
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def pid() -> Iterator[int]:
    env = {"RANK": "0", "REMOVED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", SETS_ITS_RANK], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid


def test_variables_that_a_process_set_itself_are_read(pid: int):
    env = current_environment(pid) or {}

    assert (env["RANK"], len(env["LONG"]), "REMOVED" in env) == ("7", 9000, False)


def test_initial_variables_are_used_if_memory_cannot_be_read(pid: int, monkeypatch: pytest.MonkeyPatch):
    opened = Path.open

    def refuse(path: Path, *how: object) -> object:
        if path.name == "mem":
            raise PermissionError(path)
        return opened(path, *how)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refuse)

    assert (current_environment(pid) or {}).get("RANK") == "0"


def test_exited_process_has_no_variables():
    assert current_environment(2**22 + 1) is None
