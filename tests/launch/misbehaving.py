"""Probes that run on real ranks, each with one rank that misbehaves in one way."""

import ctypes
import os
import signal
import threading
from pathlib import Path
from typing import ClassVar

from ddp_doctor.facts.collectives import CollectiveFact
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Fact, Skip
from tests import once

#: The rank that misbehaves.
BAD = 1


class Done(Fact):
    KIND: ClassVar[str] = "test-done/1"


def _all_reduce(ctx: RankContext, elements: int = 8) -> Done:
    import torch
    import torch.distributed as dist

    with ctx.step("all_reduce", "float32 [8] sum"):
        dist.all_reduce(torch.ones(elements))
    return Done()


def well_behaved(ctx: RankContext) -> Done:
    for _ in range(3):
        _all_reduce(ctx)
    return Done()


def never_enters(ctx: RankContext) -> Done:
    if ctx.rank == BAD:
        threading.Event().wait()  # the line that the report must name
    return _all_reduce(ctx)


def asleep(pid: int | None) -> Path:
    """Return the path that exists when the bad rank of the next function, with this pid, is about to sleep."""
    return Path(os.environ[once.VARIABLE], f"asleep-{pid}")


def says_that_it_never_enters(ctx: RankContext) -> Done:
    if ctx.rank == BAD:
        asleep(os.getpid()).touch()
        threading.Event().wait()
    return _all_reduce(ctx)


def loops_in_python(ctx: RankContext) -> Done:
    while ctx.rank == BAD:
        pass
    return _all_reduce(ctx)


def holds_the_interpreter(ctx: RankContext) -> Done:
    if ctx.rank == BAD:  # like a library that deadlocks with itself: PyDLL blocks all other threads
        mutex, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)
    return _all_reduce(ctx)


def never_joins_a_group(ctx: RankContext) -> Done:
    import torch.distributed as dist

    if ctx.rank == BAD:
        threading.Event().wait()
    with ctx.step("new_group"):
        dist.new_group()
    return _all_reduce(ctx)


def is_stopped(ctx: RankContext) -> Done:
    if ctx.rank == BAD:
        os.kill(os.getpid(), signal.SIGSTOP)
    return _all_reduce(ctx)


def exits(ctx: RankContext) -> Done:
    if ctx.rank == BAD:
        os.write(
            2,
            b"RuntimeError: unable to open shared memory object </torch_7_1> in read-write mode: Too many open files\n",
        )
        os._exit(3)
    return _all_reduce(ctx)


def is_killed(ctx: RankContext) -> Done:
    if ctx.rank == BAD:
        os.kill(os.getpid(), signal.SIGKILL)
    return _all_reduce(ctx)


def segfaults(ctx: RankContext) -> Done:
    if ctx.rank == BAD:
        ctypes.string_at(0)
    return _all_reduce(ctx)


def all_crash(ctx: RankContext) -> Done:
    ctx.exchange("all here", "")  # otherwise a rank might still be starting when the other has crashed
    ctypes.string_at(0)  # the line that the report must name
    return _all_reduce(ctx)


def all_exit(ctx: RankContext) -> Done:
    _all_reduce(ctx)
    os._exit(0)


def all_are_killed(ctx: RankContext) -> Done:
    ctx.exchange("all here", "")
    with ctx.step("all_reduce", "float32 [8] sum"):
        os.kill(os.getpid(), signal.SIGKILL)
    return Done()


def all_abort(ctx: RankContext) -> Done:
    ctx.exchange("all here", "")
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def raises(ctx: RankContext) -> Done:
    if ctx.rank == BAD:
        raise ValueError("the data set is empty")
    return _all_reduce(ctx)


def calls_another_operation(ctx: RankContext) -> Done:
    import torch
    import torch.distributed as dist

    if ctx.rank == BAD:
        with ctx.step("all_reduce", "float32 [8] sum"):
            dist.broadcast(torch.ones(8), src=BAD)
    return _all_reduce(ctx)


def calls_another_shape(ctx: RankContext) -> Done:
    return _all_reduce(ctx, elements=16 if ctx.rank == BAD else 8)


def comes_late(ctx: RankContext) -> Done:
    _all_reduce(ctx)
    if ctx.rank == BAD:
        threading.Event().wait(3.0)  # slowness that the product must measure
    return _all_reduce(ctx)


def moves_slowly(ctx: RankContext) -> Done:
    while True:
        threading.Event().wait(0.2)  # slowness that the product must measure
        _all_reduce(ctx)


def both_ends_receive(ctx: RankContext) -> Done:
    """Let ranks 0 and 1 wait for each other's data, as with a dead link."""
    import torch
    import torch.distributed as dist

    pair = (0, BAD)
    if ctx.rank in pair and pair not in ctx.skip_pairs:
        peer = pair[1 - pair.index(ctx.rank)]
        with ctx.step("send_recv", "uint8 [8]", peers=(peer,), deadline_s=1.0):
            dist.recv(torch.zeros(8), src=ctx.ranks.index(peer))
    return _all_reduce(ctx)


def hangs_in_one_part(ctx: RankContext) -> Fact:
    """A check of several parts; one rank never enters the one called all_gather."""
    if ctx.rank == BAD and ctx.part == "all_gather":
        threading.Event().wait()
    _all_reduce(ctx)
    return CollectiveFact(part=ctx.part, ranks=ctx.world_size)


def hangs_after_a_part_that_is_skipped(ctx: RankContext) -> Fact:
    if ctx.part in ("broadcast", "gather"):
        raise Skip("it does not apply here")
    return hangs_in_one_part(ctx)


def hangs_in_every_part(ctx: RankContext) -> Fact:
    if ctx.rank == BAD:
        threading.Event().wait()
    _all_reduce(ctx)
    return CollectiveFact(part=ctx.part, ranks=ctx.world_size)


def leaves_shared_memory(ctx: RankContext) -> Done:
    """A rank that hangs with an NCCL segment mapped that only its peers' attaching would unlink."""
    import mmap

    if ctx.rank == BAD:
        with Path(f"/dev/shm/nccl-ddp-doctor-test-{os.getpid()}").open("w+b") as file:
            file.truncate(4096)
            mapped = mmap.mmap(file.fileno(), 4096)
            threading.Event().wait()
            mapped.close()
    return _all_reduce(ctx)


def adds_to_the_sum(ctx: RankContext) -> Fact:
    import torch.distributed as dist

    from ddp_doctor.checks.collectives import allreduce

    honest = dist.all_reduce
    if ctx.rank == BAD:

        def doubled(tensor, op=dist.ReduceOp.SUM, **kwargs):
            return honest(tensor.mul_(2), op, **kwargs)

        setattr(dist, "all_reduce", doubled)  # noqa: B010 - a sabotage that types cannot describe
    return allreduce.probe(ctx)
