"""Calls in which all ranks must take part: if one does not, the others wait for ever.

dist.all_reduce(x)              yes: of the default group
dist.all_reduce(x, group=g)     not known: of a group that may be of these very ranks
loss.backward()                 yes, where the loss comes from a model that DDP wrapped
DDP(model)                      yes: it compares and broadcasts the parameters
FSDP(model).state_dict()        yes: it gathers the parameters
dist.send(x, dst=1)             no: between two ranks
"""

from __future__ import annotations

from functools import lru_cache

from ddp_doctor.lint import names, training
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import NOTHING, Call, Value, is_result

_PRIVATE = ("_all_gather_base", "_reduce_scatter_base")
#: The position of the argument ``group``; it is the third in all others. Source: the signatures in
#: torch/distributed/distributed_c10d.py, which torch 2.13 and 2.15 have in common.
_GROUP_AT = {
    **dict.fromkeys(("barrier", "monitored_barrier"), 0),
    **dict.fromkeys(("reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"), 3),
    **dict.fromkeys(("gather", "gather_object", "gather_single", "gather_into_tensor"), 3),
    **dict.fromkeys(("scatter", "scatter_object_list", "_reduce_scatter_base"), 3),
    "all_to_all_single": 4,
}
#: The same of torch.distributed.nn.functional, where it is another one.
_GROUP_AT_WITH_GRADIENT = {**_GROUP_AT, "all_gather": 1, "gather": 2, "scatter": 2}
_NAMES = frozenset(
    (
        *(f"torch.distributed.{name}" for name in (*names.COLLECTIVES, *_PRIVATE)),
        *(f"torch.distributed.nn.{part}{name}" for part in ("", "functional.") for name in names.COLLECTIVES),
        *(f"torch.distributed.checkpoint.{name}" for name in ("save", "load", "async_save")),
    )
)
#: Every rank has a part of what DeepSpeed writes.
_OF_DEEPSPEED = ("save_checkpoint", "load_checkpoint")
#: What Accelerate calls them; only the Accelerator's own methods count.
_OF_ACCELERATE = frozenset(("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes"))
#: What gathers the parts of all ranks: of a model under FSDP, and functions of FSDP that are given one. Source:
#: torch/distributed/fsdp/_state_dict_utils.py of torch 2.13, in which all but LOCAL_STATE_DICT unshards.
_OF_FSDP = ("state_dict", "clip_grad_norm_")
_FSDP = (names.FSDP[0], "fairscale.nn.FullyShardedDataParallel")
_FSDP_GATHERS = tuple(
    f"{names.FSDP[0]}.{name}"
    for name in ("optim_state_dict", "full_optim_state_dict", "summon_full_params", "get_state_dict")
)
_FSDP_STATES = tuple(f"{names.FSDP[0]}.{name}" for name in ("state_dict_type", "set_state_dict_type"))
#: Optimizers whose states the ranks share out, and what collects these.
_OF_SHARED_STATES = "consolidate_state_dict"
_SHARES_STATES = (
    "torch.distributed.optim.ZeroRedundancyOptimizer",
    *(f"fairscale.optim{module}.OSS" for module in ("", ".oss")),
)
_METHODS = ("backward", *_OF_DEEPSPEED, *_OF_ACCELERATE, *_OF_FSDP, _OF_SHARED_STATES)
_ACCELERATOR = "accelerate.Accelerator"
_DEFAULT_GROUPS = ("None", "dist.group.WORLD", "torch.distributed.group.WORLD", "group.WORLD")


@lru_cache(maxsize=4)
def collectives(script: Script) -> tuple[Call, ...]:
    """All collective calls of a script, in the order in which they run."""
    possible = [*script.named(*_NAMES, names.DDP, *_FSDP_GATHERS), *script.methods(*_METHODS)]
    return tuple(
        call
        for call in sorted(possible, key=lambda call: call.order)
        if operation(call) or _is_synchronised_backward(script, call) or _gathers_parameters(script, call)
    )


def operation(call: Call) -> str:
    """The name of the collective; empty if it is not one of the default group."""
    if call.name in _NAMES:
        name = call.name.rpartition(".")[2]
        is_checkpoint = ".checkpoint." in call.name
        at = _GROUP_AT_WITH_GRADIENT if ".nn." in call.name else _GROUP_AT
        position = None if name == "new_group" or is_checkpoint else at.get(name, 2)
        group = call.argument(position, "group", "process_group")
        if not call.lacks(None, "no_dist") or (group and group.text not in _DEFAULT_GROUPS):
            return ""
        return f"checkpoint.{name}" if is_checkpoint else name
    if call.name == names.DDP:
        is_of_all = call.lacks(names.SHARED_BY_DDP, "process_group", "device_mesh") and call.lacks(None, "init_sync")
        return "DDP constructor" if is_of_all else ""
    is_of_all = any(_is_collective_of_library(call, made) for made in call.receiver.objects())
    return call.method if is_of_all else ""


def _is_collective_of_library(call: Call, made: Value) -> bool:
    made = made.owner or made  # the engine is the first of what deepspeed.initialize returns
    if not isinstance(made, Call):
        return False
    if call.method == _OF_SHARED_STATES:
        return made.name in _SHARES_STATES and made.lacks(None, "group")
    return (call.method in _OF_DEEPSPEED and made.name == "deepspeed.initialize") or (
        call.method in _OF_ACCELERATE and made.name == _ACCELERATOR
    )


def described(call: Call) -> str:
    """The name of the collective in a sentence."""
    name = call.method or call.name.rpartition(".")[2]
    of_fsdp = f"{name} of the FSDP model" if name != "backward" else ""
    return operation(call) or of_fsdp or "backward of the DDP model"


def _gathers_parameters(script: Script, call: Call) -> bool:
    if script.uses("LOCAL_STATE_DICT"):
        return False
    model = call.argument(0, "model", "module") if call.name in _FSDP_GATHERS else NOTHING
    if call.method in _OF_FSDP:
        model = call.receiver
    if not model:
        return False
    states = (
        state.argument(0, "module")
        for state in (*call.place.withs, *script.named(_FSDP_STATES[1]))
        if isinstance(state, Call) and state.name in _FSDP_STATES
    )

    def is_sharded_over_all(made: Call) -> bool:
        return made.name in _FSDP and made.lacks(1, "process_group") and made.lacks(None, "device_mesh")

    return is_result(model, is_sharded_over_all) or any(
        list(model.objects()) == list(whole.objects()) for whole in states
    )


def _is_synchronised_backward(script: Script, call: Call) -> bool:
    if call.method != "backward" or not training.forwards_in(script, call.receiver):
        return False
    if any("no_sync" in context.text for context in call.place.withs):
        return False
    return all(wrap.lacks(names.SHARED_BY_DDP, "process_group") for wrap in script.wraps)
