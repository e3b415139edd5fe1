"""The mesh that the user's factory makes, compared on all ranks before it is made."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, TypeVar

from ddp_doctor.features.model.user_model.probing.user_code import Misuse
from ddp_doctor.model.context import ModelMesh, RankContext
from ddp_doctor.model.recording import Axis, mesh_typed

T = TypeVar("T")
#: The text of a rank whose factory failed, instead of a mesh.
_FAILED = "failed"


class _PeerFailed(Exception):
    """Another rank failed in the factory."""


def of_model(mesh: Any) -> ModelMesh:
    """Return the axes of a DeviceMesh that the user's factory returned, and the mesh."""
    return (_axes(tuple(mesh.shape), mesh.mesh_dim_names), mesh) if mesh is not None else ((), None)


def _axes(shape: Sequence[int], names: Sequence[str] | None) -> tuple[Axis, ...]:
    names = names or [f"dim_{at}" for at in range(len(shape))]
    return tuple(Axis(name=name, size=size) for name, size in zip(names, shape, strict=True))


@contextmanager
def compared(ctx: RankContext) -> Iterator[Callable[[Callable[[], T]], T | None]]:
    """Compare the meshes that ranks pass to init_device_mesh while the user's factory runs.

    Different meshes would hang, so all ranks raise Misuse instead, and the mesh check reports the difference. The
    yielded function calls the factory. When a rank's factory returns, it counts as asking for no mesh. If a rank fails,
    which it reports itself, the function returns None on the other ranks.
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
