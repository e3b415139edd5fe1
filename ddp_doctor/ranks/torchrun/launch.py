"""Start ranks under the real torchrun, and end it in any state.

torchrun runs in its own session, dies with the agent, and gets the interpreter, the environment and the rendezvous of
the job.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from ddp_doctor.model.recording import OWN_PROCESS
from ddp_doctor.model.trial import RankEvidence
from ddp_doctor.parse.options import written
from ddp_doctor.ranks.environment import python_path, without_launcher
from ddp_doctor.ranks.events import EventReader
from ddp_doctor.ranks.helper import FROM_OUTSIDE, Helper
from ddp_doctor.ranks.spec import WorkerSpec
from ddp_doctor.settings.trials import LOCAL_ADDR

_MODULE = "ddp_doctor.ranks.torchrun.main"
_LOADS_S = 1.0
#: torch 2.13 distributed/elastic/multiprocessing/api.py, _terminate_process_handler. Before that, while it imports,
#: SIGINT ends it as any Python.
#: torch clears the KeyboardInterrupt of a SIGINT during its import of numpy, and numpy then refuses the next import.
_SIGNALLED = re.compile(
    r"SignalException: Process \d+ got signal|^KeyboardInterrupt$|^ImportError: cannot load module more than once",
    re.MULTILINE,
)
#: ``failed (exitcode: -9) local_rank: 1 (pid: 4711)``, and in the summary ``exitcode  : -9 (pid: 4711)`` (the same file
#: and multiprocessing/errors/__init__.py).
_TOLD = re.compile(r"exitcode\s{0,4}: (?P<code>-?\d{1,3})\)?(?: local_rank: \d{1,6})? \(pid: (?P<pid>\d{1,10})\)")
#: The first failure, after which torchrun ends the other ranks (the same file).
_FIRST = re.compile(
    r"failed \(exitcode: (?P<code>-?\d{1,3})\) local_rank: (?P<local_rank>\d{1,6}) \(pid: (?P<pid>\d{1,10})\)"
)
#: torchrun's --monitor_interval: the delay until it ends the others (torch 2.13 distributed/run.py).
_LOOKS_EVERY_S = 0.1


@dataclass
class LaunchedWorker:
    """A rank that torchrun forked: known by the pid it reports; gone when torchrun's session is."""

    reader: EventReader
    torchrun: "subprocess.Popen[bytes]"
    pid: int | None = None
    _gone: bool = False

    @property
    def exitcode(self) -> int | None:
        """The exit code, or None while the rank lives. Only torchrun knows the true code: 0 means gone."""
        if self.pid is None:
            began = next((event for event in self.reader.new() if event["event"] == "begin"), None)
            self.pid = began["pid"] if began else None
        if self.pid is not None and not self._gone:
            self._gone = not os.path.exists(f"/proc/{self.pid}")
        if self.pid is None and self.torchrun.poll() is not None:
            return self.torchrun.returncode or 1
        return 0 if self._gone else None


def rendezvous(nnodes: int, store: tuple[str, int] | None, trial: str) -> list[str]:
    """Return the options for the rendezvous of torchrun on several nodes: c10d, as in the job, on the control store.

    The store is on the port that the job's rendezvous would use. torchrun opens its other ports, such as its ephemeral
    MASTER_PORT, as it would for the job. ``is_host=0``: the store already exists, so every node is a client.
    """
    at = written(*(store or ("127.0.0.1", 0)))
    return [
        *("--nnodes", str(nnodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", at),
        *("--rdzv-id", f"ddp-doctor-{trial}", "--rdzv-conf", "is_host=0"),
    ]


class Launch:
    """A running torchrun. Leaving the context kills its entire session."""

    def __init__(
        self, folder: Path, specs: Sequence[WorkerSpec], env: Mapping[str, str], meeting: Sequence[str] = ()
    ) -> None:
        for spec in specs:
            # torchrun creates their environment, and the user's secrets must not be written to a file.
            text = spec.model_copy(update={"env": {}}).to_json()
            (folder / f"local{spec.local_rank}.spec.json").write_text(text)
        self._folder = folder
        self._output = folder / "torchrun.out"
        self._argv = [
            *(sys.executable, "-m", _MODULE),
            *(str(os.getpid()), "--nproc-per-node", str(len(specs))),
            *("--log-dir", str(folder)),  # the default is a directory in TMPDIR, which a killed torchrun leaves behind
            *meeting,
            *(("--local-addr", env[LOCAL_ADDR]) if meeting and env.get(LOCAL_ADDR) else ()),
            *("-m", "ddp_doctor.ranks.torchrun.worker", str(folder)),
        ]
        self._env = {**without_launcher(env), "PYTHONPATH": python_path(env)}
        self._env.pop("NCCL_DEBUG_FILE", None)  # NCCL would empty the user's file
        self._specs = specs

    def __enter__(self) -> "Launch":
        try:
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    self._argv,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    cwd=self._folder,  # the first place where its Python looks for modules
                )
            self._helper = Helper("torchrun", self._process.pid)
            readers = [EventReader(spec.path("events")) for spec in self._specs]
            self.workers = [LaunchedWorker(reader, self._process) for reader in readers]
        except BaseException:  # for example a signal before the process was known here
            end_all(self._folder)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end_all(self._folder)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

    def lost(self) -> str | None:
        """Return why torchrun does not serve if it was stopped or killed from outside, or None."""
        code = self._process.poll()
        if code is None:
            return self._helper.stopped()
        killed = -code in FROM_OUTSIDE or _SIGNALLED.search(self._last_output())
        return f"{OWN_PROCESS} was killed from outside: {self._helper.name}" if killed else None

    def notes(self, timeout_s: float) -> tuple[str, ...]:
        """Return how torchrun ended, for the trial's record; waits up to ``timeout_s`` for it."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return ("torchrun did not end by itself", self._last_output())
        if code == 0:
            return ("torchrun ended by itself",)
        return (f"torchrun ended with exit code {code}", self._last_output())

    def with_exit_codes(self, evidence: Sequence[RankEvidence]) -> tuple[RankEvidence, ...]:
        """Return the ranks with the exit codes that torchrun printed: no other process learns them."""
        exit_codes = {int(found["pid"]): int(found["code"]) for found in _TOLD.finditer(self._last_output())}
        mine = {worker.pid for worker in self.workers}
        evidence = self._with_first(evidence)
        return tuple(
            rank.model_copy(update={"exit_code": exit_codes[rank.pid]})
            if rank.exited_at is not None and rank.pid in mine and rank.pid in exit_codes
            else rank
            for rank in evidence
        )

    def _with_first(self, evidence: Sequence[RankEvidence]) -> Sequence[RankEvidence]:
        """Give a rank that ended before its first line the time and exit code of torchrun's first failure."""
        first = _FIRST.search(self._last_output())
        gone = [rank.exited_at for rank in evidence if rank.exited_at is not None]
        ranks = [spec.rank for spec in self._specs if first and spec.local_rank == int(first["local_rank"])]
        if not first or not gone or not ranks:
            return evidence
        told = {
            "pid": int(first["pid"]),
            "exit_code": int(first["code"]),
            "exited_at": max(min(gone) - _LOOKS_EVERY_S, 0.0),
        }
        return [
            rank.model_copy(update=told) if rank.rank in ranks and not rank.pid and rank.exited_at is not None else rank
            for rank in evidence
        ]

    def _last_output(self) -> str:
        return self._output.read_text(errors="replace")[-4000:]


def end_all(folder: Path) -> None:
    """End every torchrun that this process started with its log below ``folder``, and its descendants.

    The system is asked for running processes, because a signal may come before a process is stored here.
    """
    try:
        children = psutil.Process().children()
    except OSError:  # /proc without system files; the children die with this process
        return
    for torchrun in children:
        # torchrun gives each worker its own session, so they are found as its descendants; psutil compares start times,
        # so it does not kill other processes with the same pid.
        with suppress(psutil.Error):
            command = _command(torchrun)
            logs = [Path(value) for name, value in pairwise(command) if name == "--log-dir"]
            if _MODULE not in command or not any(folder in (path, *path.parents) for path in logs):
                continue
            family = torchrun.children(recursive=True)
            torchrun.kill()
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs([torchrun, *family], timeout=1.0)


def _command(process: psutil.Process) -> list[str]:
    """Return its command line, which is empty for a moment while the system loads its program."""
    deadline = time.monotonic() + _LOADS_S
    while not (command := process.cmdline()) and time.monotonic() < deadline:
        time.sleep(0.001)
    return command
