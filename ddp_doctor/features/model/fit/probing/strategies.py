"""A model distributed over this run's ranks, with each of the estimated strategies."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ddp_doctor.features.model.fit.facts import Precision
from ddp_doctor.knowledge.ddp.strategies import BY_NAME, Strategy


def wrap(
    model: Any,
    strategy: str,
    *,
    units: Sequence[Any],
    checkpointing: bool,
    precision: Precision,
    optimizer: Callable[[Any], Any],
    ranks_per_node: int,
    options: Mapping[str, Any] | None = None,
) -> tuple[Any, Any]:
    """Return the wrapped model and its optimizer; ``options`` are DDP's. All ranks of the default group must call it.

    A model on the CPU is sharded there, so move it to its device first. Raises what torch raises.
    """
    row = BY_NAME[strategy]
    if precision == "bf16":
        import torch

        model.to(torch.bfloat16)
    if checkpointing:
        recompute(units or [model])
    if row.shards_parameters:
        _shard(model, row, units, precision, ranks_per_node)
        return model, optimizer(trainable(model.parameters()))
    from torch.nn.parallel import DistributedDataParallel

    if precision == "amp":
        autocast(model)
    device = next(model.parameters()).device
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        **{**(options or {}), "gradient_as_bucket_view": row.bucket_view},
    )
    made = optimizer(trainable(model.parameters()))
    return wrapped, _zero1(made, trainable(model.parameters())) if row.shards_state else made


def trainable(parameters: Iterable[Any]) -> list[Any]:
    """Return the parameters that get a gradient."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def recompute(units: Iterable[Any], **options: Any) -> None:
    """Keep only the inputs of each unit between forward and backward."""
    from torch.utils.checkpoint import checkpoint

    for unit in units:
        unit.forward = partial(checkpoint, unit.forward, use_reentrant=False, **options)


def autocast(model: Any) -> None:
    """Compute the forward in bfloat16 where torch's automatic mixed precision does."""
    import torch

    device = next(model.parameters()).device.type
    model.forward = torch.autocast(device, torch.bfloat16)(model.forward)


def _shard(model: Any, row: Strategy, units: Sequence[Any], precision: Precision, ranks_per_node: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    world = dist.get_world_size()
    shape: tuple[int, ...] = (world // ranks_per_node, ranks_per_node) if row.within_node else (world,)
    device = next(model.parameters()).device.type
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if precision == "amp" else None)
    pin = device == "cuda"  # a CPU has no memory to pin
    given: dict[str, Any] = {
        "mesh": init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :]),
        "mp_policy": mixed,
        "offload_policy": CPUOffloadPolicy(pin_memory=pin) if row.offloads else OffloadPolicy(),
    }
    for unit in innermost_first(model, units):
        fully_shard(unit, reshard_after_forward=row.reshards, **given)
    # torch's default keeps the parameters of no unit, which the backward needs first.
    fully_shard(model, reshard_after_forward=None if row.reshards else False, **given)


def innermost_first(model: Any, units: Sequence[Any]) -> list[Any]:
    """Return the units without the model itself, each before the units that contain it."""
    wanted = {id(unit) for unit in units}
    return [module for module in reversed(list(model.modules())) if id(module) in wanted and module is not model]


def _zero1(made: Any, parameters: list[Any]) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    taken = inspect.signature(type(made)).parameters
    defaults = {name: value for name, value in made.defaults.items() if name in taken}
    return ZeroRedundancyOptimizer(parameters, type(made), **defaults)
