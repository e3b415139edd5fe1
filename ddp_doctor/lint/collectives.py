"""Calls in which all ranks must take part: if one does not, the others wait for ever.

dist.all_reduce(x)              yes: of the default group
dist.all_reduce(x, group=g)     not known: of a group that may be of these very ranks
loss.backward()                 yes, where the loss comes from a model that DDP wrapped
dist.send(x, dst=1)             no: between two ranks
"""

from __future__ import annotations

from functools import lru_cache

from ddp_doctor.lint import names, training
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call

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
_OF_ACCELERATE = frozenset(
    ("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes")
)
_METHODS = ("backward", *_OF_DEEPSPEED, *_OF_ACCELERATE)
_ACCELERATOR = "accelerate.Accelerator"
_DEFAULT_GROUPS = ("None", "dist.group.WORLD", "torch.distributed.group.WORLD", "group.WORLD")


@lru_cache(maxsize=4)
def collectives(script: Script) -> tuple[Call, ...]:
    """All collective calls of a script, in the order in which they run."""
    possible = [*script.named(*_NAMES), *script.methods(*_METHODS)]
    return tuple(
        call
        for call in sorted(possible, key=lambda call: call.order)
        if operation(call) or _is_synchronised(script, call)
    )


def operation(call: Call) -> str:
    """The name of the collective; empty if it is not one of the default group."""
    if call.name in _NAMES:
        name = call.name.rpartition(".")[2]
        is_checkpoint = ".checkpoint." in call.name
        at = _GROUP_AT_WITH_GRADIENT if ".nn." in call.name else _GROUP_AT
        position = None if name == "new_group" or is_checkpoint else at.get(name, 2)
        group = call.argument(position, "group", "process_group")
        if (
            call.has_stars
            or not call.lacks(None, "no_dist")
            or (group is not None and group.text not in _DEFAULT_GROUPS)
        ):
            return ""
        return f"checkpoint.{name}" if is_checkpoint else name
    if call.method in _OF_DEEPSPEED and call.receiver is not None:
        engines = (option.owner or option for option in call.receiver.objects())
        is_engine = any(
            isinstance(engine, Call) and engine.name == "deepspeed.initialize" for engine in engines
        )
        return call.method if is_engine else ""
    if call.method in _OF_ACCELERATE and call.receiver is not None:
        made = (option.name for option in call.receiver.objects())
        return call.method if _ACCELERATOR in made else ""
    return ""


def described(call: Call) -> str:
    """The name of the collective in a sentence."""
    return operation(call) or "backward of the DDP model"


def _is_synchronised(script: Script, call: Call) -> bool:
    """A backward pass through the wrapped model that reduces gradients."""
    if call.method != "backward" or not training.forwards_in(script, call.receiver):
        return False
    contexts = (context.text for context in call.place.withs)
    return not any("no_sync" in context for context in contexts) and not _has_group(script)


def _has_group(script: Script) -> bool:
    return any(not wrap.lacks(names.SHARED_BY_DDP, "process_group") for wrap in script.wraps)
