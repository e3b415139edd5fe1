"""The mesh of a job on its ranks: its groups, made as the job makes them, and the collectives of each axis.

All ranks do the same steps in the same order, each in its own group of the axis; between two axes all meet, so that
all groups of an axis are at work at once, and no other. Groups that are made in another order hang: so the ranks
compare over the control store what they would make, and make nothing where they differ.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from math import prod
from typing import Any, TypeVar

from ddp_doctor.facts.collectives import ELEMENTS, AxisGroup, MeshFact, SizeResult, WrongShare
from ddp_doctor.knowledge import axes
from ddp_doctor.knowledge.collectives import TABLE
from ddp_doctor.model.context import ModelMesh, RankContext
from ddp_doctor.model.fact import Misused, Skip
from ddp_doctor.model.recording import Axis, mesh_typed
from ddp_doctor.probing.all_reduces import agreed, meet, memory_free, memory_needed
from ddp_doctor.probing.collectives import ODD_ELEMENTS, Case, NotOffered, timed, wrong_shares
from ddp_doctor.probing.user_model.user_code import Misuse

T = TypeVar("T")

#: Of a timed collective, by device: small beside a gradient bucket on CPUs, above it on GPUs.
_BYTES = {"cpu": 1 << 20, "cuda": 64 << 20}
_TIMES = 5
#: In place of a mesh, by a rank whose factory has failed.
_FAILED = "failed"


class _PeerFailed(Exception):
    """Another rank failed in the factory."""


def misfit(mesh: Sequence[Axis], ranks: int) -> str:
    """Why these axes are no mesh of so many ranks, with what to do; empty where they are."""
    needed = prod(axis.size for axis in mesh)
    if needed == ranks:
        return ""
    return (
        f"--mesh {mesh_typed(mesh)} is no mesh of this run: its sizes multiply to {needed}, and the world has {ranks}"
        f" rank{'s' * (ranks > 1)}; change an axis, or --nproc-per-node"
    )


def compared_and_driven(ctx: RankContext) -> MeshFact:
    """Compare the mesh on all ranks, make it and drive its axes. Raises Misused where it is no mesh of these ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh, made = ctx.options.mesh or ctx.model_mesh[0], None if ctx.options.mesh else ctx.model_mesh[1]
    with ctx.step("compare_meshes"):
        told = ctx.exchange("mesh", mesh_typed(mesh))
    if not any(told):
        raise Skip("the factory of --model returns no mesh")
    if len(set(told)) > 1:
        return MeshFact(mesh=mesh)
    if why := misfit(mesh, ctx.world_size):
        raise Misused(why) if ctx.options.mesh else Skip(f"the mesh {told[0]} of --model does not include all ranks")
    names, sizes = tuple(axis.name for axis in mesh), tuple(axis.size for axis in mesh)
    if made is None:
        with ctx.step("init_device_mesh", mesh_typed(mesh)):
            made = init_device_mesh(ctx.device.partition(":")[0], sizes, mesh_dim_names=names)
    groups = {axis.name: made.get_group(at) for at, axis in enumerate(mesh) if axis.size > 1}
    driven = [_driven(ctx, axis, group) for axis, group in groups.items()]
    return MeshFact(mesh=mesh, made=True, groups=tuple(_at_once(ctx, driven, [*groups.values()])))


def of_model(mesh: Any) -> ModelMesh:
    """The axes of a DeviceMesh that the user's factory returned, and that mesh itself."""
    return (_axes(tuple(mesh.shape), mesh.mesh_dim_names), mesh) if mesh is not None else ((), None)


def _axes(shape: Sequence[int], names: Sequence[str] | None) -> tuple[Axis, ...]:
    names = names or [f"dim_{at}" for at in range(len(shape))]
    return tuple(Axis(name=name, size=size) for name, size in zip(names, shape, strict=True))


@contextmanager
def compared(ctx: RankContext) -> Iterator[Callable[[Callable[[], T]], T | None]]:
    """While the user's factory runs: ranks that call init_device_mesh compare first what they ask for.

    Where they differ they would hang: all of them then raise Misuse, and the check of the mesh names who differs. What
    is given calls the factory: a rank that is through with it asks for no mesh where others do, and where one has
    failed, which tells so by itself, the others come out with nothing.
    """
    import torch.distributed as dist
    from torch.distributed import device_mesh

    init_device_mesh, calls, differ = device_mesh.init_device_mesh, count(), False

    def compare(asked: tuple[Axis, ...], text: str) -> None:
        nonlocal differ
        if differ:
            return
        with ctx.step("compare_meshes"):
            told = ctx.exchange(f"mesh {next(calls)}", text)
        differ = len(set(told)) > 1
        if _FAILED in told:
            raise _PeerFailed
        if differ:
            ctx.model_mesh = asked, None
            meshes = " and ".join(dict.fromkeys(mesh or "none" for mesh in told))
            raise Misuse(f"the ranks create different meshes: {meshes}")

    def compared(device_type: str, mesh_shape: tuple[int, ...], **more: Any) -> Any:
        asked = _axes(mesh_shape, more.get("mesh_dim_names"))
        compare(asked, mesh_typed(asked))
        return init_device_mesh(device_type, mesh_shape, **more)

    def called(factory: Callable[[], T]) -> T | None:
        try:
            value = factory()
            compare((), "")
        except _PeerFailed:
            return None
        except BaseException:
            with suppress(_PeerFailed):
                compare((), _FAILED)
            raise
        return value

    places: tuple[Any, ...] = (device_mesh, dist)  # torch has it in both
    for place in places:
        place.init_device_mesh = compared
    try:
        yield called
    finally:
        for place in places:
            place.init_device_mesh = init_device_mesh


def _driven(ctx: RankContext, axis: str, group: Any) -> AxisGroup:
    """What the collectives of an axis bring, and how fast they are, in this rank's group beside all others."""
    import torch.distributed as dist

    members = tuple(ctx.ranks[rank] for rank in dist.get_process_group_ranks(group))
    sources, wrong = Counter[int](), list[WrongShare]()
    untested, sizes = dict[str, str](), dict[str, SizeResult]()
    for row in map(TABLE.__getitem__, axes.sends(axis)):
        op, size = "sum" * row.reduces, _BYTES[ctx.device.partition(":")[0]]
        try:
            for case in (Case("float32", op), Case("float32", op, ODD_ELEMENTS, turn=1)):
                with ctx.within(axis, members):
                    looked_at, found = wrong_shares(ctx, row, case, group, members)
                sources.update(looked_at)
                name = f"{row.words} of axis {axis}, {case.words(row)}"
                wrong += [share.model_copy(update={"case": name}) for share in found]
        except NotOffered as why:
            untested[row.name] = f"not offered by the backend: {why}"
        if agreed(ctx, float(memory_needed(ctx, row, size) > memory_free(ctx))):  # all refused it, or none did
            untested.setdefault(row.name, "not enough memory to measure its time")
        if row.name not in untested:
            with ctx.within(axis, members):
                sizes[row.name] = timed(ctx, row, size, _TIMES, group=group)
    return AxisGroup(
        axis=axis, members=members, sources=dict(sources), wrong=tuple(wrong), sizes=sizes, untested=untested
    )


def _at_once(ctx: RankContext, driven: Sequence[AxisGroup], groups: Sequence[Any]) -> Iterator[AxisGroup]:
    """Add what is wrong in all-reduces on all axes at the same time, as of a job that hides one behind the other."""
    import torch
    import torch.distributed as dist

    meet(ctx)
    with ctx.step("all_reduce", "on all axes at once"):
        tensors = [torch.full((ELEMENTS,), float(ctx.rank + 1), device=ctx.device) for _ in groups]
        pairs = zip(tensors, groups, strict=True)
        for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in pairs]:
            work.wait()
    for of_axis, tensor in zip(driven, tensors, strict=True):
        due = float(sum(rank + 1 for rank in of_axis.members))
        off = int((tensor != due).sum().item())
        name, got = f"all-reduces on all axes at once, axis {of_axis.axis}", float(tensor.max().item())
        wrong = [WrongShare(case=name, elements=off, of=ELEMENTS, expected=due, got=got)] * (off > 0)
        yield of_axis.model_copy(update={"wrong": (*of_axis.wrong, *wrong)})
