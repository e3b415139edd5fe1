"""A worker: one rank of one trial. It runs the rank checks in order and writes its events.

A worker that raised does not exit: its sockets would close, and its peers would report connection resets.
It waits to be killed, so that the agent sees the cause and not its consequences.

A second thread answers the agent's request for evidence while the main thread hangs. SIGUSR2 asks this thread, which
reads the Python stack and torch's flight recorder. SIGUSR1 asks faulthandler, which answers even while the main
thread holds the interpreter lock in C. A stopped process answers neither until SIGCONT.
"""

import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

from ddp_doctor.knowledge.gpu.gpu_speed import SHARE_FOR_SIZES, allowance
from ddp_doctor.knowledge.victims import blames_peer
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Fact, read
from ddp_doctor.model.trial import Raised
from ddp_doctor.ranks.events import EventWriter
from ddp_doctor.ranks.process import FORKSERVER_PID, die_with_parent, hand_over, redirect_output, set_name
from ddp_doctor.ranks.spec import WorkerSpec
from ddp_doctor.ranks.store import connect
from ddp_doctor.ranks.worker import torch_private
from ddp_doctor.ranks.worker.rank_context import LiveRankContext

#: Longer than the agent waits, so no library timeout ends a rank before the agent does.
_LIBRARY_TIMEOUT = timedelta(minutes=10)


def forked(spec_json: str) -> NoReturn:
    """Run a rank forked by the forkserver; it ends when the agent sends SIGTERM."""
    spec = WorkerSpec.from_json(spec_json)
    die_with_parent(FORKSERVER_PID)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR2, signal.SIGTERM))  # before any thread exists
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the forkserver ignores it; processes started by this rank must not
    os.environ.clear()
    os.environ.update(spec.env)
    redirect_output(spec.path("out"))
    run(spec)
    signal.sigwait({signal.SIGTERM})
    _leave(spec.backend)


def launched(spec: WorkerSpec) -> NoReturn:
    """Run a rank that torchrun started; it exits on its own, as in a job."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR2,))  # before any thread exists
    redirect_output(spec.path("out"))
    faulthandler.enable()  # a forked rank has it from its server
    completed = run(spec)
    while not completed:
        signal.pause()
    _leave(spec.backend)


def run(spec: WorkerSpec) -> bool:
    """Join the process group and run all checks; return False if one of them raised."""
    set_name(f"ddp-doctor:r{spec.rank}")
    events = EventWriter(spec.path("events"))
    events.write("begin", pid=os.getpid())
    # faulthandler answers SIGUSR1, a thread SIGUSR2, which is already blocked.
    stacks = os.open(spec.path("stacks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    threading.Thread(target=_answer_each, args=(spec.path("stack_dump.json"), spec.backend), daemon=True).start()
    context = LiveRankContext(spec, events)
    try:
        _join(spec, context)
        for task in spec.tasks:
            context.begin(task.check, task.deadline_s, task.part)
            module, _, name = task.probe.partition(":")
            probe: Callable[[RankContext], Fact] = getattr(importlib.import_module(module), name)
            reading = read(task.check, probe, context, spec.node, spec.rank).model_copy(update={"part": task.part})
            events.write("reading", reading=reading.model_dump(mode="json"))
    except BaseException as error:  # noqa: BLE001 - even SystemExit of a probe is evidence
        events.write("raised", **_raised(error).model_dump())
        return False
    events.write("done")
    return True


def _join(spec: WorkerSpec, context: LiveRankContext) -> None:
    import torch
    import torch.distributed as dist

    options: dict[str, Any] = {"timeout": _LIBRARY_TIMEOUT}
    context.begin("process_group", spec.init_deadline_s)
    if spec.device.startswith("cuda"):
        context.gpu_memory_bytes = _take_gpu(spec.device, whole=bool(spec.options.sizes or spec.options.fit))
        # Without it torch 2.15 uses LOCAL_RANK, or the rank in the job, whatever set_device() selected.
        options["device_id"] = torch.device(spec.device)
    started = time.monotonic()
    with context.step("init_process_group", spec.backend, deadline_s=spec.init_deadline_s):
        if spec.store is not None:
            context.store = connect(*spec.store, spec.trial.trial)
            options.update(store=context.store, rank=spec.group_rank, world_size=context.world_size)
        dist.init_process_group(spec.backend, **options)
    context.init_s = time.monotonic() - started
    context.group = dist.group.WORLD
    context.backend_impl = torch_private.backend_impl(context.group, spec.device)
    context.bound_device = torch_private.bound_device(context.group)


def _take_gpu(device: str, *, whole: bool) -> int:
    """Make this rank's GPU the current device and limit its memory for all checks; return the limit in bytes.

    ``whole``: nearly all free memory may be used, because the user requested sizes or asked what fits.
    """
    import torch

    if torch.version.cuda is None and torch.version.hip is None:  # otherwise torch fails with an internal error
        raise RuntimeError(
            f"torch {torch.__version__} is a CPU-only build, but {device} is requested; install torch with CUDA or ROCm"
        )
    torch.cuda.set_device(device)
    free, total = torch.cuda.mem_get_info()
    allowed = int(SHARE_FOR_SIZES * free) if whole else allowance(free)
    torch.cuda.set_per_process_memory_fraction(allowed / total)
    return allowed


def _raised(error: BaseException) -> Raised:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/torch/" not in frame.filename] or list(frames)
    traceback.print_exception(error)
    sys.stderr.flush()
    return Raised(
        type=type(error).__name__,
        message=str(error)[:2000],
        where=f"{own[-1].filename}:{own[-1].lineno}" if own else "",
        blames_peer=blames_peer(str(error)),
        at=time.monotonic(),
    )


def _leave(backend: str) -> NoReturn:
    if backend == "nccl":  # frees its shared memory; the agent's SIGKILL follows if this hangs
        import torch.distributed as dist

        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def whole_stack(frames: Mapping[int, FrameType], main: int) -> list[traceback.FrameSummary]:
    """Return the main thread's stack, outermost first; in a backward, with the code that autograd's thread runs for it.

    For a GPU, autograd has its own threads, which run hooks and functions of the job. Python did not start them, so
    their stacks begin in that code. If several or none of them run, nothing is added.
    """
    stack = list(traceback.extract_stack(frames.get(main)))
    if not stack or stack[-1].name != "_engine_run_backward":
        return stack
    others = [traceback.extract_stack(frame) for thread, frame in frames.items() if thread != main]
    foreign = [other for other in others if other[0].filename != threading.__file__]
    return [*stack, *foreign[0]] if len(foreign) == 1 else stack


def _answer_each(path: str, backend: str) -> None:
    main = threading.main_thread().ident
    while True:
        signal.sigwait({signal.SIGUSR2})
        frames = whole_stack(sys._current_frames(), main or 0)  # noqa: SLF001 - there is no public way
        stack = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        source = [frame.line or "" for frame in frames]
        recorder, entries = torch_private.flight_entries(backend)
        flight = [entry.model_dump() for entry in entries]
        late = torch_private.retires_late(recorder)
        answer = {"stack": stack, "source": source, "recorder": recorder, "flight": flight, "retires_late": late}
        hand_over(path, answer)
