"""The worker's second thread: answers the agent's request for evidence while the main thread hangs.

SIGUSR2 asks this thread, which reads the Python stack and torch's flight recorder. SIGUSR1 asks
faulthandler, which answers even while the main thread holds the interpreter lock in C. A stopped process
answers neither until SIGCONT.
"""

import faulthandler
import json
import os
import signal
import sys
import threading
import traceback

from ddp_doctor.ranks.spec import WorkerSpec


def block_signals(*signals: signal.Signals) -> None:
    """Block them in this thread and in all that it starts; call before any thread exists."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)


def start(spec: WorkerSpec) -> None:
    """Register faulthandler and start the answering thread; SIGUSR2 must be blocked already."""
    stacks = os.open(spec.path("stacks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    threading.Thread(target=_answer, args=(spec.path("stack_dump.json"), spec.backend), daemon=True).start()


def _answer(path: str, backend: str) -> None:
    from ddp_doctor.ranks.torch_private import flight_entries, retires_late

    main = threading.main_thread().ident
    while True:
        signal.sigwait({signal.SIGUSR2})
        frame = sys._current_frames().get(main or 0)  # noqa: SLF001 - there is no public way
        stack = [f"{f.filename}:{f.lineno} in {f.name}" for f in traceback.extract_stack(frame)]
        recorder, entries = flight_entries(backend)
        flight = [entry.model_dump() for entry in entries]
        late = retires_late(recorder)
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump({"stack": stack, "recorder": recorder, "retires_late": late, "flight": flight}, file)
        os.replace(path + ".tmp", path)
