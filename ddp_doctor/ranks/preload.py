"""Imports torch and the checks in the forkserver before it serves, once per node.

Importing this module has all the effect, because multiprocessing can only preload modules. It writes ``preload.json``
to the run directory when it begins and when it is done, so the agent can report a hanging import (a dead shared file
system) with its line.
"""

import faulthandler
import gc
import os
import signal
import time
import traceback
import warnings

from ddp_doctor.ranks.process import die_with_parent, hand_over, redirect_output, set_name

#: Variables that give the forkserver the run directory and the pid of its agent.
RUN_FOLDER_VARIABLE = "DDP_DOCTOR_RUN_FOLDER"
AGENT_VARIABLE = "DDP_DOCTOR_AGENT_PID"
#: Set if ranks will construct a DistributedDataParallel.
DDP_VARIABLE = "DDP_DOCTOR_PRELOADS_DDP"
#: A terminal and a scheduler send these to all processes; the agent handles them and asks the ranks for their position.
AGENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _prepare(run_folder: str) -> None:
    for number in AGENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AGENTS_SIGNALS)
    die_with_parent(int(os.environ.pop(AGENT_VARIABLE)))
    set_name("ddp-doctor:fork")
    redirect_output(os.path.join(run_folder, "forkserver.log"))
    faulthandler.enable()  # a crashing import prints its stack
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def _import_all(*, ddp: bool) -> str | None:
    # Garbage collection is off: objects created by imports stay, and searching them while importing costs a fifth of
    # the time. Freezing keeps the pages shared between the forked ranks.
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch.nn.parallel

            if ddp:  # its first construction imports this, 0.6-1.3 s per rank
                import torch._dynamo.utils  # noqa: F401 - for the ranks

            import ddp_doctor.checks
            import ddp_doctor.ranks.worker.main  # noqa: F401 - for the ranks
    except BaseException:  # noqa: BLE001 - whatever the user's torch raises is what the agent reports
        return traceback.format_exc()
    finally:
        gc.freeze()
        gc.enable()
    return None


if RUN_FOLDER_VARIABLE in os.environ:  # a plain import, by a test or a type checker, does nothing
    _run_folder = os.environ.pop(RUN_FOLDER_VARIABLE)
    _prepare(_run_folder)
    _state, _pid = os.path.join(_run_folder, "preload.json"), os.getpid()
    hand_over(_state, {"pid": _pid, "done": False})
    _started = time.monotonic()
    _error = _import_all(ddp=os.environ.pop(DDP_VARIABLE, "") == "1")
    hand_over(_state, {"pid": _pid, "done": True, "error": _error, "import_s": time.monotonic() - _started})
