"""The sharding of a module by fully_shard (FSDP2): its units, and each parameter's unit, mesh, placement and policies.

fully_shard gives each module a new class, ``FSDPLinear(FSDPModule, Linear)``, and makes each parameter a DTensor. Its
arguments are only in private attributes, which only ``policy`` reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ddp_doctor.features.model.user_model.sharded_facts import Mesh
from ddp_doctor.knowledge.ddp.manifests import Manifest
from ddp_doctor.model.fact import Failed
from ddp_doctor.probing import module_manifest

_CLASS = "FSDPModule"


def is_unit(module: Any) -> bool:
    """Return True if fully_shard was called on this module, by class name, because torch 2.4 has it elsewhere."""
    return any(base.__name__ == _CLASS for base in type(module).__mro__)


def is_sharded(model: Any) -> bool:
    """Return True if fully_shard was called on the model or a module in it."""
    return any(is_unit(module) for module in model.modules())


def require_torch(device: str) -> None:
    """Raise Failed if this torch has only a prototype of fully_shard, or does not support it on this device."""
    import torch
    from torch.distributed import fsdp

    this = f"this is torch {torch.__version__}"
    if not hasattr(fsdp, _CLASS):
        raise Failed(f"testing fully_shard (FSDP2) requires torch 2.6 or newer; {this}")
    if device == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):  # AttributeError of torch 2.6 in any forward
        raise Failed(f"on the CPU, fully_shard (FSDP2) requires a torch newer than 2.6; {this}")


def is_dtensor(tensor: Any) -> bool:
    """Return True if a tensor is distributed over a mesh."""
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


def mesh_of(mesh: Any) -> Mesh:
    """Return a DeviceMesh as this rank sees it."""
    ranks = tuple(mesh.mesh.flatten().tolist())
    return Mesh(names=tuple(mesh.mesh_dim_names or ()), shape=tuple(mesh.shape), ranks=ranks)


def in_words(mesh: Mesh) -> str:
    """Return ``shard=2, ranks 0 1``; without ranks for a submesh, because each rank has a different one."""
    import torch.distributed as dist

    names = mesh.names or tuple(f"dimension {place}" for place in range(len(mesh.shape)))
    sizes = ", ".join(f"{name}={size}" for name, size in zip(names, mesh.shape, strict=True))
    if len(mesh.ranks) < dist.get_world_size():
        return f"{sizes}, {len(mesh.ranks)} of {dist.get_world_size()} ranks"
    return f"{sizes}, ranks {' '.join(map(str, mesh.ranks))}"


@dataclass(frozen=True)
class Policy:
    """The arguments of a unit's fully_shard call."""

    param_dtype: Any
    reduce_dtype: Any
    output_dtype: Any
    casts_inputs: bool
    resharding: str
    divide_factor: float | None  # of the summed gradients; None for the number of ranks
    reduces_unused: bool  # a gradient missing on a rank counts as zero: set_reduce_scatter_unused_params
    mesh_dimensions: int  # of fully_shard's mesh; 0 for a unit without own parameters

    @property
    def precision(self) -> str:
        """The types as text, to show and to compare."""
        types = (("parameters", self.param_dtype), ("reduce", self.reduce_dtype), ("output", self.output_dtype))
        given = [f"{name} {str(dtype).removeprefix('torch.')}" for name, dtype in types if dtype is not None]
        return ", ".join([*given, *([] if self.casts_inputs else ["inputs as they are"])]) or "as the parameters"


def policy(unit: Any) -> Policy | None:
    """Return the policies of a unit, or None if this torch does not show them."""
    try:
        state = unit._get_fsdp_state()  # noqa: SLF001 - torch has no public access to fully_shard's arguments
        groups = getattr(state, "_fsdp_param_groups", None)
        group = groups[0] if groups else state._fsdp_param_group  # noqa: SLF001 - torch 2.6 to 2.11 has one
        types = state._mp_policy  # noqa: SLF001 - as above
        resharding, dimensions, factor, unused = "as usual", 0, None, True
        if group is not None:
            resharding, dimensions = _resharding(state, group), int(group.mesh_info.mesh.ndim)
            factor = getattr(group, "gradient_divide_factor", None)
            unused = bool(getattr(group, "reduce_scatter_unused_params", False))
        return Policy(
            param_dtype=types.param_dtype,
            reduce_dtype=types.reduce_dtype,
            output_dtype=types.output_dtype,
            casts_inputs=bool(types.cast_forward_inputs),
            resharding=resharding,
            divide_factor=factor,
            reduces_unused=unused,
            mesh_dimensions=dimensions,
        )
    except (AttributeError, IndexError, TypeError):
        return None


def _resharding(state: Any, group: Any) -> str:
    """Return ``as usual``, ``True`` or ``to 2 ranks``, and the offload policy if there is one."""
    after = group.post_forward_mesh_info
    told = str(after is not None)
    if after is not None and after != group.mesh_info:
        told = f"to {after.mesh.shape[-1]} ranks"
    if getattr(state, "_auto_reshard_after_forward", False):  # fully_shard decides when the root is known
        told = "as usual"
    kind = type(group.offload_policy).__name__
    return told + ("" if kind == "OffloadPolicy" else f", {kind}")


@dataclass(frozen=True)
class Sharded:
    """A parameter and its unit; None if no unit shards it."""

    name: str
    parameter: Any
    unit: str | None = None
    policy: Policy | None = None


def parameters(model: Any) -> Iterator[Sharded]:
    """Yield every parameter under each of its names, in the order of ``named_parameters``."""
    units = {name: module for name, module in model.named_modules() if is_unit(module)}
    policies = {name: policy(module) for name, module in units.items()}
    owner: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not is_dtensor(parameter):
            yield Sharded(name, parameter)
            continue
        parts = name.split(".")
        prefixes = (".".join(parts[:length]) for length in range(len(parts) - 1, -1, -1))
        own = next((prefix for prefix in prefixes if prefix in units), None)
        unit = owner.setdefault(id(parameter), own) if own is not None else owner.get(id(parameter))
        yield Sharded(name, parameter, unit, policies.get(unit) if unit is not None else None)


def manifest(module: Any) -> Manifest:
    """Return the manifest of a module, including how fully_shard sharded its parameters."""
    found = module_manifest.read(module)
    if not is_sharded(module):
        return found
    changed = []
    for tensor, sharded in zip(found.parameters, parameters(module), strict=True):
        if is_dtensor(sharded.parameter):
            ways = {
                "unit": sharded.unit,
                "mesh": in_words(mesh_of(sharded.parameter.device_mesh)),
                "placement": ", ".join(map(str, sharded.parameter.placements)),
                "precision": sharded.policy.precision if sharded.policy else None,
                "resharding": sharded.policy.resharding if sharded.policy else None,
            }
            changed.append(tensor.model_copy(update=ways))
        else:
            changed.append(tensor)
    return found.model_copy(update={"parameters": tuple(changed)})
