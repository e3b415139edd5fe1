"""The mesh of a job, made on its ranks as the job makes it, and the collectives of each axis.

All ranks take the same steps in the same order, each in its own group of the axis. Between two axes all ranks meet, so
all groups of one axis work at once, and no others. Groups made in different orders hang, so the ranks first compare the
mesh over the control store, and make nothing if it differs.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from ddp_doctor.facts.collectives import ELEMENTS, AxisGroup, MeshFact, SizeResult, WrongShare
from ddp_doctor.knowledge import axes
from ddp_doctor.knowledge.collectives import TABLE
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Misused, Skip
from ddp_doctor.model.recording import Axis, mesh_typed
from ddp_doctor.probing.all_reduces import agreed, meet, memory_free, memory_needed
from ddp_doctor.probing.collectives import ODD_ELEMENTS, Case, NotOffered, timed, wrong_shares

#: Size of a timed collective, by device: smaller than a gradient bucket on CPUs, larger on GPUs.
_BYTES = {"cpu": 1 << 20, "cuda": 64 << 20}
_TIMES = 5


def misfit(mesh: Sequence[Axis], ranks: int) -> str:
    """Return why these axes do not form a mesh of this many ranks, with advice; empty if they do."""
    needed = prod(axis.size for axis in mesh)
    if needed == ranks:
        return ""
    return (
        f"--mesh {mesh_typed(mesh)} does not fit this run: its sizes multiply to {needed}, and the world has {ranks}"
        f" rank{'s' * (ranks > 1)}; change an axis, or --nproc-per-node"
    )


def compared_and_driven(ctx: RankContext) -> MeshFact:
    """Compare the mesh on all ranks, make it and test its axes. Raises Misused if it is not a mesh of these ranks."""
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


def _driven(ctx: RankContext, axis: str, group: Any) -> AxisGroup:
    """Check and time the collectives of an axis in this rank's group, while the axis's other groups do the same."""
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
        if agreed(ctx, float(memory_needed(ctx, row, size) > memory_free(ctx))):  # all ranks refuse, or none
            untested.setdefault(row.name, "not enough memory to measure its time")
        if row.name not in untested:
            with ctx.within(axis, members):
                sizes[row.name] = timed(ctx, row, size, _TIMES, group=group)
    return AxisGroup(
        axis=axis, members=members, sources=dict(sources), wrong=tuple(wrong), sizes=sizes, untested=untested
    )


def _at_once(ctx: RankContext, driven: Sequence[AxisGroup], groups: Sequence[Any]) -> Iterator[AxisGroup]:
    """Add the errors of all-reduces on all axes at once, as in a job that overlaps them."""
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
