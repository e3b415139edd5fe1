"""Agents of several nodes on this one host: real processes that meet on the loopback address."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.lab.processes import comm, pids_with

ROOT = Path(__file__).parent.parent.parent
#: How long a test waits for what comes in a moment: only one that fails waits so long, however busy the machine is.
PATIENCE_S = 90.0


class Agent:
    """One agent's process; ``claims`` is the node rank it is started with."""

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
        argv = [
            *(sys.executable, "-m", module, "run", "--nnodes", str(nnodes)),
            *("--node-rank", str(claims), "--rdzv-endpoint", f"127.0.0.1:{port}", "--json", str(self.json)),
            *options,
        ]
        self.home = folder / name
        env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(self.home), **(more_env or {})}
        with self.said.open("wb") as output:
            self.process = subprocess.Popen(argv, stdout=output, stderr=output, env=env, cwd=folder)

    def report(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Its report, once it has ended."""
        self.process.wait(timeout_s)
        report: dict[str, Any] = json.loads(self.json.read_text())
        return report

    def wait_for(self, words: str, timeout_s: float = PATIENCE_S) -> None:
        """Until its progress says this."""
        deadline = time.monotonic() + timeout_s
        while words not in self.said.read_text():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def family(self, grace_s: float = PATIENCE_S) -> list[str]:
        """What still runs of it, itself included, after a time of grace."""
        deadline = time.monotonic() + grace_s
        while alive := self._alive():
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return alive

    def _alive(self) -> list[str]:
        # its own folder stands in the environment of all that it started
        return [f"{pid} {comm(pid)}" for pid in pids_with(f"XDG_STATE_HOME={self.home}")]


def end(agents: Sequence[Agent]) -> None:
    """Whatever a test left running."""
    for agent in agents:
        if agent.process.poll() is None:
            agent.process.kill()
            agent.process.wait(PATIENCE_S)
