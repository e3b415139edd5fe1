"""The world a run tests with: how many ranks, over which backend, started by whom."""

import socket

from ddp_doctor.model.choices import Backend
from ddp_doctor.model.recording import Node, World
from ddp_doctor.starters.detect import OuterWorld

#: Ranks where there is no GPU: two are a world, and each more costs a core.
CPU_RANKS = 2


def choose_world(
    *,
    gpus: int,
    cuda_torch: bool,
    asked_ranks: int | None,
    backend: Backend,
    outer: OuterWorld | None,
    addresses: dict[str, tuple[str, ...]],
    nnodes: int = 1,
) -> World:
    """One node's world. ``gpus`` is how many a job may use, ``cuda_torch`` whether torch can.

    The number of ranks is the one asked for, else the outer launcher's, else one per GPU. ``nnodes``
    is how many such nodes the run has: without GPUs one rank of each is a world.
    """
    chosen = _backend(backend, gpus if cuda_torch else 0)
    ranks = asked_ranks or (outer.local_size if outer and outer.local_size > 1 else None)
    ranks = ranks or (gpus if chosen == "nccl" and gpus else CPU_RANKS if nnodes == 1 else 1)
    return World(
        nnodes=1,
        nproc_per_node=ranks,
        world_size=ranks,
        backend=chosen,
        launcher=outer.launcher if outer else "plain",
        foreign_nodes=outer.nnodes if outer and nnodes == 1 else 1,
        nodes=(Node(node_rank=0, hostname=socket.gethostname(), addresses=addresses),),
    )


def _backend(asked: Backend, usable_gpus: int) -> str:
    if asked is not Backend.AUTO:
        return str(asked.value)
    return "nccl" if usable_gpus else "gloo"
