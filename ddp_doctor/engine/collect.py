"""Run the planned probes of one node, each with its own deadline, and choose the world of its ranks."""

import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence

from ddp_doctor.engine.plan import Plan
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Backend, Status, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import CouldNotLook, Fact, Failed, Reading
from ddp_doctor.model.fact import read as read_fact
from ddp_doctor.model.recording import INTERRUPTED_AFTER, Node, Recording, World
from ddp_doctor.parse.visible_devices import visible_gpus
from ddp_doctor.starters.request import RunRequest

#: Makes the Context of one probe; the argument is its deadline on the monotonic clock.
ContextMaker = Callable[[float], Context]


def read_check(check: Check, context: Context) -> Reading:
    """Run one probe; whatever it raises becomes the reading's status and reason."""

    def probe(context: Context) -> Fact:
        try:
            return check.probe(context)
        except CouldNotLook:
            raise
        except Exception as error:
            # An error of the system is not a bug of the check, so a traceback would not help.
            what = f"{type(error).__name__}: {error}" if isinstance(error, OSError) else traceback.format_exc(limit=-3)
            raise Failed(f"the check failed with {what}") from error

    return read_fact(check.id, probe, context, context.node)


def collect(
    checks: Sequence[Check],
    make_context: ContextMaker,
    progress: Callable[[str], None],
    kept: list[Reading] | None = None,
) -> list[Reading]:
    """Return one reading per check, in order. A probe that misses its deadline is abandoned as ``timed_out``.

    An interruption adds the readings so far to ``kept``.
    """
    started = time.monotonic()
    probes = [(check, make_context(started + check.deadline_s)) for check in checks]
    read: dict[str, Reading] = {}  # filled by threads; a hanging thread is abandoned

    def look(check: Check, context: Context) -> None:
        read[check.id] = read_check(check, context)

    def reading_of(check: Check, context: Context, status: Status, why: str, waited_s: float) -> Reading:
        unread = Reading(check=check.id, status=status, node=context.node, reason=why, duration_s=waited_s)
        return read.get(check.id, unread)

    threads = [threading.Thread(target=look, args=probe, daemon=True) for probe in probes]
    for thread in threads:
        thread.start()
    readings = []
    try:
        for (check, context), thread in zip(probes, threads, strict=True):
            progress(check.id)
            thread.join(max(started + check.deadline_s - time.monotonic(), 0.0))
            late = f"no answer within {check.deadline_s:g} s"
            readings.append(reading_of(check, context, Status.TIMED_OUT, late, check.deadline_s))
    except BaseException:
        waited_s = time.monotonic() - started
        why = f"{INTERRUPTED_AFTER} {waited_s:.1f} s without an answer"
        unread = [reading_of(*probe, Status.SKIPPED, why, waited_s) for probe in probes]
        (kept if kept is not None else []).extend(unread)
        raise
    return readings


#: Ranks without GPUs: two make a world, and each additional rank uses a core.
CPU_RANKS = 2


def choose_world(recording: Recording, request: RunRequest, addresses: dict[str, tuple[str, ...]]) -> World:
    """Return the world of one node, computed from its facts.

    The number of ranks is the requested one, the outer launcher's, or one per GPU, in this order. Without GPUs, each of
    several nodes has one rank.
    """
    fact, software, outer = recording.first(GpusFact), recording.first(Software), request.outer
    gpus = len(visible_gpus(fact, request.env)) if fact else 0
    can_use_gpus = gpus and software is not None and software.torch_cuda is not None
    chosen = str(request.options.backend.value)
    if request.options.backend is Backend.AUTO:
        chosen = "nccl" if can_use_gpus else "gloo"
    ranks = request.nproc_per_node or (outer.local_size if outer and outer.local_size > 1 else None)
    ranks = ranks or (gpus if chosen == "nccl" and gpus else CPU_RANKS if request.nnodes == 1 else 1)
    return World(
        nnodes=1,
        nproc_per_node=ranks,
        world_size=ranks,
        backend=chosen,
        launcher=outer.launcher if outer else "plain",
        foreign_nodes=outer.nnodes if outer and request.nnodes == 1 else 1,
        nodes=(Node(node_rank=0, hostname=socket.gethostname(), addresses=addresses),),
    )


def with_node_facts(
    recording: Recording, plan: Plan, request: RunRequest, kept: list[Reading] | None = None
) -> Recording:
    """Add the facts of this node to the recording, and the world of ranks computed from them.

    An interruption adds the readings so far to ``kept``.
    """
    readings = read_node(plan.at(Where.NODE), World(), request, kept)
    recording = recording.model_copy(update={"readings": tuple(readings)})
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    addresses = {
        name: tuple(address.address for address in known if address.family in families)
        for name, known in psutil.net_if_addrs().items()
        if name in up
    }
    return recording.model_copy(update={"world": choose_world(recording, request, addresses)})


def read_node(
    checks: Sequence[Check], world: World, request: RunRequest, kept: list[Reading] | None = None
) -> list[Reading]:
    """Run the probes that need no other node, in parallel. An interruption adds the readings so far to ``kept``."""
    from ddp_doctor.sources.machine import LiveContext

    def context(deadline: float) -> LiveContext:
        return LiveContext(request.env, deadline, world=world, level=request.options.level)

    return collect(checks, context, request.progress, kept)
