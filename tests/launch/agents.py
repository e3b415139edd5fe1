"""Agents of several nodes on this one host: real processes that meet on the loopback address."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.lab.processes import comm, pids_with
from tests.waiting import JOIN_LATE, LIMIT_S, wait_until

ROOT = Path(__file__).parent.parent.parent


def _copy(screen: int, path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while text := os.read(screen, 65536):
            file.write(text)
    os.close(screen)


class Agent:
    """The process of an agent; ``claims`` is the node rank it is started with."""

    def __init__(
        self,
        folder: Path,
        port: int,
        nnodes: int,
        claims: int,
        *options: str,
        name: str = "",
        module: str = "ddp_doctor",
        more_env: Mapping[str, str] | None = None,
    ) -> None:
        name = name or f"node{claims}"
        self.json = folder / f"{name}.json"
        self.said = folder / f"{name}.txt"
        self.progress = folder / f"{name}.progress"  # and all other output on stderr, which is a terminal
        argv = [
            *(sys.executable, "-m", module, "run", "--nnodes", str(nnodes)),
            *("--node-rank", str(claims), "--rdzv-endpoint", f"127.0.0.1:{port}", "--json", str(self.json)),
            *(*JOIN_LATE, *options),
        ]
        self.home = folder / name
        env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(self.home), **(more_env or {})}
        env["COLUMNS"] = "200"
        screen, terminal = os.openpty()
        with self.said.open("wb") as output, os.fdopen(terminal, "wb") as errors:
            self.process = subprocess.Popen(argv, stdout=output, stderr=errors, env=env, cwd=folder)
        self.progress.touch()
        self._copier = threading.Thread(target=_copy, args=(screen, self.progress), daemon=True)
        self._copier.start()

    def report(self, timeout_s: float = LIMIT_S) -> dict[str, Any]:
        self.process.wait(timeout_s)
        report: dict[str, Any] = json.loads(self.json.read_text())
        return report

    def wait_for(self, words: str) -> None:
        """Wait until its progress says this. Raises AssertionError if it exits before."""
        wait_until(lambda: words in self.progress.read_text() or not self._copier.is_alive(), words)
        assert words in self.progress.read_text(), self.words()

    def words(self) -> str:
        if self.process.poll() is not None:
            self._copier.join(LIMIT_S)
        return self.progress.read_text() + self.said.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def family(self) -> list[str]:
        with suppress(AssertionError):
            wait_until(lambda: not self.alive())
        return self.alive()

    def alive(self) -> list[str]:
        """Return its processes; everything that it started has its own directory in the environment."""
        return [f"{pid} {comm(pid)}" for pid in pids_with(f"XDG_STATE_HOME={self.home}")]


#: start(nnodes, node_rank, *options)
Start = Callable[..., Agent]


def codes(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"] if finding["severity"] in ("error", "warning")]


def reports_of(agents: Sequence[Agent], timeout_s: float = LIMIT_S) -> tuple[list[dict[str, Any]], list[str]]:
    """Their reports, and what still runs of them; that is ended."""
    try:
        return [agent.report(timeout_s) for agent in agents], [left for agent in agents for left in agent.family()]
    finally:
        end(agents)


def end(agents: Sequence[Agent]) -> None:
    for agent in agents:
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait(LIMIT_S)
