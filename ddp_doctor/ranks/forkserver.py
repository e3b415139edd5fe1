"""The forkserver of a node: started first, it imports torch while the agent collects node facts."""

import atexit
import json
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ddp_doctor.facts.collectives import TorchImport
from ddp_doctor.knowledge.deadlines import EXTENSION, LOOK_S, STILL_CPU_S_PER_S
from ddp_doctor.ranks.environment import python_path
from ddp_doctor.ranks.helper import Helper, HelperLost, was_killed
from ddp_doctor.ranks.patience import Patience
from ddp_doctor.ranks.preload import AGENT_VARIABLE, AGENTS_SIGNALS, DDP_VARIABLE, RUN_FOLDER_VARIABLE
from ddp_doctor.ranks.process import cpu_seconds, state
from ddp_doctor.sources.proc import io_bytes

#: Time for a killed process to end.
_DEATH_S = 1.0


#: The forked processes, each with the process that forked it: a copy of that process must not end them.
_forked = weakref.WeakKeyDictionary[BaseProcess, int]()


@atexit.register  # registered after multiprocessing's own handler, so it runs first
def _kill_forked() -> None:
    """Kill the forked processes if the caller was interrupted: at exit, multiprocessing waits for them forever."""
    for process, forked_by in list(_forked.items()):
        if forked_by == os.getpid() and process.is_alive():
            process.kill()


class ForkServer:
    """A forkserver process that imported torch before it had any thread or CUDA context."""

    def __init__(self, run_folder: Path, env: dict[str, str]) -> None:
        self._run_folder = run_folder
        self._env = env
        self._helper: Helper | None = None

    def start(self, *, ddp: bool = True) -> None:
        """Start it. Call from the main thread: the forkserver dies with the thread that started it.

        ``ddp`` is True if ranks will construct a DistributedDataParallel, which takes half of the import.
        """
        extra = {
            RUN_FOLDER_VARIABLE: str(self._run_folder),
            AGENT_VARIABLE: str(os.getpid()),
            DDP_VARIABLE: "1" if ddp else "",
            # The forkserver is `python -c`: it would find this package only in the working directory.
            "PYTHONPATH": python_path(self._env),
            "PYTHONSAFEPATH": "1",  # ignores the working directory (Python 3.11 or newer)
            # A library that queries GPUs while it is imported must not initialize CUDA before the fork.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            # torchrun's default; OpenMP reads it when torch loads, later is too late.
            "OMP_NUM_THREADS": self._env.get("OMP_NUM_THREADS", "1"),
        }
        # A killed resource tracker is restarted with this warning, which does not matter: ddp-doctor does not need it.
        warnings.filterwarnings("ignore", "resource_tracker: process died", UserWarning)
        multiprocessing.get_context("forkserver").set_forkserver_preload(["ddp_doctor.ranks.preload"])
        before = {name: os.environ[name] for name in extra if name in os.environ}
        os.environ.update(extra)
        # multiprocessing keeps its socket in a directory that only a regular exit removes; the run directory is always
        # removed.
        process: Any = multiprocessing.current_process()
        config = process._config  # noqa: SLF001 - no public call moves the socket
        config["tempdir"] = str(self._run_folder)
        multiprocessing.resource_tracker.ensure_running()  # started separately: it would unblock the signals
        signal.pthread_sigmask(signal.SIG_BLOCK, AGENTS_SIGNALS)  # until the forkserver ignores them
        try:
            with self._errors_in_log():  # a Python that does not start prints the reason
                multiprocessing.forkserver.ensure_running()
            server: Any = multiprocessing.forkserver._forkserver  # noqa: SLF001 - no public call returns its pid
            self._helper = Helper("the forkserver", server._forkserver_pid)  # noqa: SLF001 - see above
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, AGENTS_SIGNALS)
            config.pop("tempdir")
            for name in extra:
                del os.environ[name]
            os.environ.update(before)

    @contextmanager
    def _errors_in_log(self) -> Iterator[None]:
        """Redirect the stderr of processes started inside the block to the log."""
        try:
            own = os.dup(2)
        except OSError:  # closed
            own = os.open(os.devnull, os.O_WRONLY)
        log = os.open(self._run_folder / "forkserver.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 2)
        try:
            yield
        finally:
            os.dup2(own, 2)
            os.close(own)
            os.close(log)

    def wait_ready(self, timeout_s: float) -> TorchImport:
        """Wait until torch is imported; after the deadline, kill the import and return its position.

        An import that made progress in the last second is slow, not stuck, and gets a share of its time once more. Time
        without a processor does not count. Raises HelperLost if the forkserver itself, not torch, is the reason.
        """
        began = time.monotonic()
        imported = self._wait(timeout_s, timeout_s)
        if imported.moving:
            imported = self._wait(timeout_s * EXTENSION, timeout_s)
        if imported.stuck_at is None:
            return imported
        took_s = round(time.monotonic() - began, 1)
        return imported.model_copy(update={"import_s": took_s, "stuck_at": self._stack_of(imported.stuck_at)})

    def _wait(self, limit_s: float, timeout_s: float) -> TorchImport:
        """Wait this long; the process stays alive, and the result of a stuck import has its pid instead of a stack."""
        preload: dict[str, object] = {}
        read_at, used = 0.0, self._cpu_time_and_bytes()
        patience = Patience(limit_s, [self.pid])
        while (left_s := patience.left_s()) > 0.0:
            if left_s < LOOK_S and not read_at:
                read_at, used = time.monotonic(), self._cpu_time_and_bytes()
            with suppress(FileNotFoundError):
                preload = json.loads((self._run_folder / "preload.json").read_text())
            if (lost := self.lost()) is not None:
                if self.is_alive() or was_killed(self.pid or 0):
                    raise HelperLost(lost)
                return TorchImport(import_s=timeout_s, error=f"the import of torch killed its process\n{self.log()}")
            if preload.get("done"):
                error = preload.get("error")
                return TorchImport(import_s=float(str(preload["import_s"])), error=str(error) if error else None)
            time.sleep(0.02)
        # It computed or read something in this time, or waits for a processor.
        elapsed_s = time.monotonic() - read_at
        (cpu_before, bytes_before), (cpu, read) = used, self._cpu_time_and_bytes()
        moving = False
        if cpu_before is not None and cpu is not None:
            busy = cpu - cpu_before >= STILL_CPU_S_PER_S * elapsed_s or state(self.pid or 0) == "R"
            moving = busy or read != bytes_before
        return TorchImport(import_s=timeout_s, stuck_at=str(preload.get("pid", "")), moving=moving)

    def _cpu_time_and_bytes(self) -> tuple[float | None, int | None]:
        return (None, None) if self.pid is None else (cpu_seconds(self.pid), io_bytes(self.pid))

    @property
    def pid(self) -> int | None:
        """The pid of the forkserver, or None before its start."""
        return self._helper.pid if self._helper is not None else None

    def fork(self, target: Callable[[str], None], argument: str) -> BaseProcess:
        """Fork one worker that runs ``target(argument)``. Raises HelperLost if the forkserver does not answer."""
        if (lost := self.lost()) is not None:
            raise HelperLost(lost)
        process = multiprocessing.get_context("forkserver").Process(target=target, args=(argument,))
        failed: list[Exception] = []

        def start() -> None:
            try:
                process.start()
            except Exception as error:  # noqa: BLE001 - raised again below, in the caller's thread
                failed.append(error)

        # multiprocessing waits for the answer without a timeout, and a stopped forkserver does not answer.
        starting = threading.Thread(target=start, daemon=True, name="fork")
        starting.start()
        while starting.is_alive():
            starting.join(0.1)
            if starting.is_alive() and (lost := self.lost()) is not None:
                raise HelperLost(lost)
        if failed:
            raise HelperLost(self.lost() or str(failed[0])) from failed[0]
        _forked[process] = os.getpid()
        return process

    def lost(self) -> str | None:
        """Return why the forkserver does not serve, or None."""
        return self._helper.lost() if self._helper is not None else "the forkserver was not started"

    def is_alive(self) -> bool:
        """Return True if it lives; otherwise multiprocessing would silently start a new forkserver without torch."""
        return self.pid is not None and state(self.pid) not in (None, "Z")

    def stop(self) -> None:
        """Kill the forkserver and, with it, all processes forked by it that are still alive."""
        if self.pid is not None and self.is_alive():
            os.kill(self.pid, signal.SIGKILL)
        # multiprocessing's resource tracker ends when this process does, but not while it is stopped. On a busy machine
        # it may only stop later: SIGCONT also removes a pending SIGSTOP (signal(7)).
        tracker: Any = multiprocessing.resource_tracker._resource_tracker  # noqa: SLF001 - nothing public tells its pid
        if tracker._pid is not None:  # noqa: SLF001 - see above
            with suppress(ProcessLookupError):
                os.kill(tracker._pid, signal.SIGCONT)  # noqa: SLF001 - see above
        patience = Patience(_DEATH_S, [self.pid])
        while self.is_alive() and not patience.is_over():
            time.sleep(0.001)  # while it dies, multiprocessing would use it for the next session

    def _stack_of(self, pid: str) -> str:
        if not pid:
            return "the Python interpreter itself did not start"
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGUSR1)
            time.sleep(0.3)
            os.kill(int(pid), signal.SIGKILL)
        return self.log() or "no stack"

    def import_stands(self) -> str:
        """Kill the import and return ``: it was in torch/__init__.py:88``; empty if it does not answer."""
        with suppress(OSError, ValueError, IndexError):
            pid = json.loads((self._run_folder / "preload.json").read_text())["pid"]
            frames = [line for line in self._stack_of(str(pid)).splitlines() if "File " in line]
            own = [line for line in frames if "<frozen" not in line]
            path, _, line = own[0].strip().removeprefix("File ").partition(", line ")
            return f": it was in {'/'.join(path.strip(chr(34)).split('/')[-2:])}:{line.split()[0]}"
        return ""

    def log(self) -> str:
        """Return the end of stderr of the forkserver and its children."""
        with suppress(OSError):
            return (self._run_folder / "forkserver.log").read_text(errors="replace")[-4000:]
        return ""
