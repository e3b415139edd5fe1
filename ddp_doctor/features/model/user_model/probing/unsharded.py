"""The model as a single rank would have it: a copy without fully_shard, whose gradients are averaged over the ranks.

fully_shard does not support ``deepcopy``. The copy has the same modules in their original classes, full parameters
instead of shards, and all hooks except fully_shard's. Casts replace a unit's MixedPrecisionPolicy. A full step of the
job (clipping, accumulation, several backwards) gives the copy the result of one rank with the batches of all ranks,
because each gradient is averaged as soon as it is computed.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ddp_doctor.features.model.user_model.probing import sharding, user_code
from ddp_doctor.features.model.user_model.probing.passes import WHOLE
from ddp_doctor.features.model.user_model.probing.sharding import Policy, Sharded
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip

_OF_TORCH = ("torch.distributed.fsdp", "torch.distributed._composable")
_STATE = "__composable_api_state_key"


@dataclass(frozen=True)
class Pair:
    """A parameter of the user's model, and the full parameter of the copy."""

    sharded: Sharded
    whole: Any


@dataclass(frozen=True)
class Copy:
    """The copy, its parameters paired with the model's (each once), and the names of the original units."""

    model: Any
    pairs: tuple[Pair, ...]
    units: frozenset[str]

    def names(self) -> dict[str, str]:
        """Return the user's parameter names by the copy's names, which casts change."""
        known = {id(pair.whole): pair.sharded.name for pair in self.pairs}
        return {name: known[id(whole)] for name, whole in self.model.named_parameters() if id(whole) in known}

    def average_gradients(self, ctx: RankContext) -> None:
        """Sum each later gradient over the ranks, and divide it as fully_shard does."""
        for pair in self.pairs:
            if pair.whole.requires_grad:
                factor = pair.sharded.policy.divide_factor if pair.sharded.policy else None
                pair.whole.register_hook(_averaging(ctx, factor or ctx.world_size))


def _averaging(ctx: RankContext, divisor: float) -> Callable[[Any], Any]:
    def averaged(gradient: Any) -> Any:
        import torch.distributed as dist

        total = gradient.detach().double().contiguous()
        dist.all_reduce(total, group=ctx.group)
        return (total / divisor).to(gradient.dtype)

    return averaged


def copy_of(model: Any) -> Copy:
    """Return the copy; all ranks gather each parameter together. Raises Skip, possibly only on some ranks."""
    import torch

    known: dict[int, Any] = {}  # by the id of the original
    pairs = []
    for sharded in sharding.parameters(model):
        if id(sharded.parameter) not in known:
            whole = torch.nn.Parameter(_whole(sharded.parameter), requires_grad=sharded.parameter.requires_grad)
            known[id(sharded.parameter)] = whole
            pairs.append(Pair(sharded, whole))
    units = [module for module in model.modules() if sharding.is_unit(module)]
    if any(user_code.uncompiled(unit) is not unit for unit in units):
        raise Skip("the model has a unit compiled with torch.compile, and such units cannot be copied")
    for unit in units:  # before anything is copied: modules may refer to one another
        known[id(unit)] = _empty(unit)
    try:
        for module in model.modules():  # torch.compile's wrapper is bound to its module, so copy that
            if (inner := user_code.uncompiled(module)) is not module:
                known[id(module)] = copy.deepcopy(inner, known)
        for unit in units:
            known[id(unit)].__dict__.update(copy.deepcopy(_own(unit), known))
        whole_model = copy.deepcopy(model, known)
    except Exception as error:  # noqa: BLE001 - the user's code may prevent it: a lock, a file, a tensor's history
        raise Skip(f"the model cannot be copied ({type(error).__name__})") from None
    for name, unit in ((name, module) for name, module in model.named_modules() if sharding.is_unit(module)):
        if (policy := sharding.policy(unit)) is not None:
            _cast(known[id(unit)], policy, {id(pair.whole) for pair in pairs if pair.sharded.unit == name})
    of_units = {id(known[id(unit)]) for unit in units}
    names = frozenset(name or WHOLE for name, module in whole_model.named_modules() if id(module) in of_units)
    return Copy(whole_model, tuple(pairs), names)


def _whole(parameter: Any) -> Any:
    import torch

    with torch.no_grad():
        if not sharding.is_dtensor(parameter):
            return parameter.detach().clone()
        device = parameter.device_mesh.device_type  # an offloaded shard is on another device
        return parameter.detach().to(device).full_tensor().clone()


def _empty(unit: Any) -> Any:
    """Return an instance of the unit's original class; the methods of fully_shard's class do nothing in it."""
    from torch.distributed.fsdp import FSDPModule

    kinds = type(unit).__mro__
    original = kinds[kinds.index(FSDPModule) + 1]
    offered = {name: _nothing for name in vars(FSDPModule) if not name.startswith("_")}
    kind: Any = type(original.__name__, (original, type("Offered", (), offered)), {})
    return kind.__new__(kind)


def _nothing(*_: Any, **__: Any) -> None:
    """Replaces ``set_requires_gradient_sync()`` and the like."""


def _own(unit: Any) -> dict[str, Any]:
    """Return the attributes of a unit without those that fully_shard added."""
    kept: dict[str, Any] = {}
    for name, value in vars(unit).items():
        if name.startswith(_STATE) or name == "_compiled_call_impl":
            continue
        hooks = value if name.endswith("_hooks") and isinstance(value, dict) else {}
        users = type(hooks)(
            (key, hook) for key, hook in hooks.items() if not str(getattr(hook, "__module__", "")).startswith(_OF_TORCH)
        )
        kept[name] = users if hooks else value
    return kept


def _cast(unit: Any, policy: Policy, own: set[int]) -> None:
    """Let a unit of the copy compute in the policy's types; its parameters keep their type."""
    import torch
    from torch.nn.utils import parametrize

    class Cast(torch.nn.Module):
        def forward(self, parameter: Any) -> Any:
            return parameter.to(policy.param_dtype)

    if policy.param_dtype is not None:
        for module in list(unit.modules()):
            for name, parameter in list(module._parameters.items()):  # noqa: SLF001 - includes tied parameters
                if id(parameter) in own and parameter.is_floating_point() and parameter.dtype != policy.param_dtype:
                    parametrize.register_parametrization(module, name, Cast(), unsafe=True)
        if policy.casts_inputs:
            unit.register_forward_pre_hook(
                lambda _, args, kwargs: _mapped((args, kwargs), policy.param_dtype), prepend=True, with_kwargs=True
            )
    if policy.output_dtype is not None:
        unit.register_forward_hook(lambda _, __, output: _mapped(output, policy.output_dtype))


def _mapped(value: Any, dtype: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    def cast(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return tree_map(cast, value)


def shard_of(pair: Pair, whole: Any) -> Any:
    """Return the part of a full tensor that is this rank's shard of the parameter."""
    parameter = pair.sharded.parameter
    part = whole.detach()
    if not sharding.is_dtensor(parameter):
        return part
    mesh = parameter.device_mesh
    for placement, size, place in zip(parameter.placements, mesh.shape, mesh.get_coordinate(), strict=True):
        if placement.is_shard():
            # fully_shard splits like torch.chunk; if there are too few rows, the last ranks get none.
            chunks = part.chunk(size, placement.dim)
            part = chunks[place] if place < len(chunks) else part.narrow(placement.dim, 0, 0)
    return part


def local(parameter: Any) -> Any:
    """Return this rank's part of a parameter."""
    return (parameter.to_local() if sharding.is_dtensor(parameter) else parameter).detach()
