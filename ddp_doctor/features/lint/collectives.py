"""Calls that require all ranks: if one rank does not take part, the others wait forever.

dist.all_reduce(x)              yes: of the default group
dist.all_reduce(x, group=g)     not known: of a group that may be of these very ranks
loss.backward()                 yes, where the loss comes from a model that DDP wrapped
DDP(model)                      yes: it compares and broadcasts the parameters
FSDP(model).state_dict()        yes: it gathers the parameters
dist.send(x, dst=1)             no: between two ranks
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ddp_doctor.features.lint import frameworks, names, training
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import NOTHING, Call, is_result
from ddp_doctor.features.lint.wrapped import SHARDED, Wrapped, wrapped
from ddp_doctor.features.lint.wrapped import forwards as wrapped_forwards

_PRIVATE = ("_all_gather_base", "_reduce_scatter_base")
#: The position of the argument ``group``; it is the third in all others. Source: the signatures in
#: torch/distributed/distributed_c10d.py, which are the same in torch 2.13 and 2.15.
_GROUP_AT = {
    **dict.fromkeys(("barrier", "monitored_barrier"), 0),
    **dict.fromkeys(("reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"), 3),
    **dict.fromkeys(("gather", "gather_object", "gather_single", "gather_into_tensor"), 3),
    **dict.fromkeys(("scatter", "scatter_object_list", "_reduce_scatter_base"), 3),
    "all_to_all_single": 4,
}
#: The same for torch.distributed.nn.functional, if it differs.
_GROUP_AT_WITH_GRADIENT = {**_GROUP_AT, "all_gather": 1, "gather": 2, "scatter": 2}
_NAMES = frozenset(
    (
        *(f"torch.distributed.{name}" for name in (*names.COLLECTIVES, *_PRIVATE)),
        *(f"torch.distributed.nn.{part}{name}" for part in ("", "functional.") for name in names.COLLECTIVES),
        *(f"torch.distributed.checkpoint.{name}" for name in ("save", "load", "async_save")),
    )
)
#: Methods of a model under FSDP, and functions of FSDP, that gather the parts of all ranks. Source:
#: torch/distributed/fsdp/_state_dict_utils.py of torch 2.13, where all but LOCAL_STATE_DICT unshard.
_OF_FSDP = ("state_dict", "clip_grad_norm_")
_FSDP_GATHERS = tuple(
    f"{names.FSDP[0]}.{name}"
    for name in ("optim_state_dict", "full_optim_state_dict", "summon_full_params", "get_state_dict")
)
#: Functions that gather all parameters if their options ask for the full state.
_STATE_DICTS = tuple(
    f"torch.distributed.checkpoint.state_dict.get_{name}" for name in ("model_state_dict", "state_dict")
)
_FSDP_STATES = tuple(f"{names.FSDP[0]}.{name}" for name in ("state_dict_type", "set_state_dict_type"))
#: Optimizers that divide their state among the ranks, and methods that collect it.
_OF_SHARED_STATES = "consolidate_state_dict"
_SHARES_STATES = (
    "torch.distributed.optim.ZeroRedundancyOptimizer",
    *(f"fairscale.optim{module}.OSS" for module in ("", ".oss")),
)
_METHODS = frozenset(("backward", *_OF_FSDP, _OF_SHARED_STATES))
_DEFAULT_GROUPS = ("None", "dist.group.WORLD", "torch.distributed.group.WORLD", "group.WORLD")


@lru_cache(maxsize=4)
def collectives(script: Script) -> Mapping[Call, str]:
    """Return the collective calls of a script in execution order, with their names for a sentence."""
    methods = _METHODS | (frameworks.METHODS if frameworks.are_imported(script) else frozenset())
    possible = [
        *script.named(*_NAMES, *frameworks.FUNCTIONS, names.DDP, *_FSDP_GATHERS, *_STATE_DICTS),
        *script.methods(*methods),
    ]
    possible += forwards(script)
    found = {}
    for call in sorted(possible, key=lambda call: call.order):
        if name := operation(script, call):
            found[call] = name
        elif _gathers_parameters(script, call):
            found[call] = f"{call.method or call.name.rpartition('.')[2]} of the FSDP model"
        elif _is_synchronised_backward(script, call):
            found[call] = "backward of the DDP model"
        elif call in forwards(script):
            wrapper, _, elsewhere, _ = forwards(script)[call]
            by = f"{wrapper} model" if wrapper.isupper() else f"model that the {wrapper} wraps"
            found[call] = f"{call.method or 'forward'} of the {by}{f' in {elsewhere}' if elsewhere else ''}"
    return found


@lru_cache(maxsize=4)
def forwards(script: Script) -> Mapping[Call, Wrapped]:
    """Return the forwards that wait, or may wait, for other ranks: FSDP gathers parameters, DDP broadcasts buffers."""
    return {call: model for call, model in wrapped_forwards(script) if model.state != "none"}


def is_doubtful(script: Script, call: Call) -> bool:
    """Return True if a collective waits only in some configurations, or for some models."""
    model = forwards(script).get(call)
    return call.method in frameworks.DOUBTFUL or (model is not None and model.state == "unknown")


def _is_sharded(made: Call) -> bool:
    return made.name in SHARDED and made.lacks(1, "process_group") and made.lacks(None, "device_mesh")


def operation(script: Script, call: Call) -> str:
    """Return the name of the collective, or an empty text if the call is not a collective of the default group."""
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
    if call.name in frameworks.FUNCTIONS:
        return call.name
    if call.method == _OF_SHARED_STATES:
        makers = call.receiver.makers()
        return call.method if any(made.name in _SHARES_STATES and made.lacks(None, "group") for made in makers) else ""
    kind = frameworks.together(script, call)
    return f"{call.method} of the {kind}" if kind else ""


def _gathers_parameters(script: Script, call: Call) -> bool:
    if script.uses("LOCAL_STATE_DICT"):
        return False
    model = call.argument(0, "model", "module") if call.name in _FSDP_GATHERS else NOTHING
    if call.method in _OF_FSDP:
        model = call.receiver
    elif call.name in _STATE_DICTS:
        options = call.argument(None, "options").makers()
        is_full = any(each.argument(0, "full_state_dict").constant is True for each in options)
        found = wrapped(script, call.argument(0, "model"), call) if is_full else None
        return found is not None and found.state == "sharded"
    if not model:
        return False
    states = (
        state.argument(0, "module")
        for state in (*call.place.withs, *script.named(_FSDP_STATES[1]))
        if isinstance(state, Call) and state.name in _FSDP_STATES
    )

    return is_result(model, _is_sharded) or any(list(model.objects()) == list(whole.objects()) for whole in states)


def _is_synchronised_backward(script: Script, call: Call) -> bool:
    if call.method != "backward" or not training.forwards_in(script, call.receiver):
        return False
    if any("no_sync" in context.text for context in call.place.withs):
        return False
    return all(wrap.lacks(names.SHARED_BY_DDP, "process_group") for wrap in script.wraps)
