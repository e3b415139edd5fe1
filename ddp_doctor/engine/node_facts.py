"""What is planned and read on one node, before any rank is started and when all have ended."""

import socket
from collections.abc import Sequence

from ddp_doctor.engine.collect import collect
from ddp_doctor.engine.plan import Plan, make_plan
from ddp_doctor.engine.world import choose_world
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options, Recording, World
from ddp_doctor.model.usage import UsageError
from ddp_doctor.parse.visible_devices import visible_gpus
from ddp_doctor.starters.request import RunRequest


def plan_of(options: Options, checks: Sequence[Check], nnodes: int = 1) -> Plan:
    """Which checks run. Raises UsageError."""
    try:
        return make_plan(
            checks, options.level, options.only, options.skip, options.budget_s, nnodes, options.model
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def with_node_facts(recording: Recording, plan: Plan, request: RunRequest) -> Recording:
    """Add the facts of this node to the recording, and the world of ranks that follows from them."""
    readings = read_node(plan.at(Where.NODE), World(), request)
    recording = recording.model_copy(update={"readings": tuple(readings)})
    return recording.model_copy(update={"world": _world(recording, request)})


def read_node(checks: Sequence[Check], world: World, request: RunRequest) -> list[Reading]:
    """Run probes that need no other node, all at once."""
    from ddp_doctor.sources.machine import LiveContext

    def context(deadline: float) -> LiveContext:
        return LiveContext(request.env, deadline, world=world, level=request.options.level)

    return collect(checks, context, request.progress)


def _world(recording: Recording, request: RunRequest) -> World:
    gpus, software = recording.first(GpusFact), recording.first(Software)
    return choose_world(
        gpus=len(visible_gpus(gpus, request.env)) if gpus else 0,
        cuda_torch=software is not None and software.torch_cuda is not None,
        asked_ranks=request.nproc_per_node,
        backend=request.options.backend,
        outer=request.outer,
        addresses=_addresses(),
        nnodes=request.nnodes,
    )


def _addresses() -> dict[str, tuple[str, ...]]:
    """This host's interfaces that are up, with their IP addresses."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return {
        name: tuple(address.address for address in known if address.family in families)
        for name, known in psutil.net_if_addrs().items()
        if name in up
    }
