"""Objects of Lightning, Accelerate, Transformers and DeepSpeed, and the methods that all ranks must call together.

fabric = Fabric(devices=8)           a Fabric, by what made it
def run(tool: "Accelerator"):        an Accelerator, by its annotation
class Net(LightningModule):          self is a LightningModule, self.trainer its Trainer

Sources: lightning 2.6, accelerate 1.15, transformers 5.24, deepspeed 0.16, ray 2.60.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from ddp_doctor.features.lint.ranks import chosen_ranks
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Value

_OF_LIGHTNING = {
    **dict.fromkeys(("LightningModule", "LightningDataModule"), "LightningModule"),
    **{name: name for name in ("Fabric", "Trainer", "Callback")},
}
#: Kinds of objects by package and end of the class name. The modules between do not matter: packages export their
#: classes from several.
_CLASSES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("lightning", "pytorch_lightning", "lightning_fabric"), _OF_LIGHTNING),
    "accelerate": dict.fromkeys(("Accelerator", "PartialState", "AcceleratorState"), "Accelerator"),
    "transformers": {"Trainer": "Trainer of Transformers", "TrainingArguments": "TrainingArguments"},
    "trl": {"Trainer": "Trainer of Transformers"},
    "deepspeed": {"DeepSpeedEngine": "DeepSpeed engine"},
}
#: Attributes that are objects of other kinds, and parameters of a callback's hooks.
_PARTS: Mapping[tuple[str, str], str] = {
    **dict.fromkeys((("Fabric", "strategy"), ("Trainer", "strategy")), "strategy"),
    **dict.fromkeys((("LightningModule", "trainer"), ("Callback", "trainer")), "Trainer"),
    ("LightningModule", "fabric"): "Fabric",
    ("Callback", "pl_module"): "LightningModule",
    **dict.fromkeys((("Trainer of Transformers", "accelerator"), ("Accelerator", "state")), "Accelerator"),
    ("Trainer of Transformers", "args"): "TrainingArguments",
}
_SHARDED = ("get_state_dict", "save_state", "load_state")
_BY_GROUP = ("all_gather", "all_reduce", "reduce")
_LOGS = ("log", "log_dict")
_TOGETHER: Mapping[str, tuple[str, ...]] = {
    "Fabric": (
        *("barrier", "broadcast", "save", "load", "backward", "setup", "setup_module", "rank_zero_first"),
        *("all_gather", "all_reduce"),
    ),
    "Trainer": ("fit", "validate", "test", "predict", "save_checkpoint"),
    "LightningModule": ("all_gather", "manual_backward", *_LOGS),
    "strategy": ("barrier", "broadcast", "reduce_boolean_decision", *_BY_GROUP),
    "Accelerator": (
        *("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes", "backward"),
        *("check_trigger", "main_process_first", "local_main_process_first", *_SHARDED),
    ),
    "Trainer of Transformers": ("train", "evaluate", "predict", "save_model"),
    "TrainingArguments": ("main_process_first",),
    "DeepSpeed engine": ("save_checkpoint", "load_checkpoint", "backward", "step", "save_16bit_model"),
}
METHODS = frozenset(method for methods in _TOGETHER.values() for method in methods)
#: Methods that wait only if the model is sharded, and the constructor arguments that shard it.
_SHARDED_BY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_SHARDED, ("fsdp_plugin", "deepspeed_plugin")),
    "save_model": ("fsdp", "deepspeed"),
}
DOUBTFUL = (*_SHARDED_BY, "save_16bit_model")
#: Functions that all ranks, or all workers of Ray, must call.
FUNCTIONS = frozenset(
    (
        *("ray.train.report", "ray.air.session.report"),
        *("ray.train.collective.barrier", "ray.train.collective.broadcast_from_rank_zero"),
        *(
            f"accelerate.utils.{module}{name}"
            for module in ("", "operations.")
            for name in ("wait_for_everyone", "pad_across_processes", "gather", "gather_object", "broadcast", "reduce")
        ),
    )
)


def are_imported(script: Script) -> bool:
    """Return True if the script imports one of the frameworks."""
    return any(module.partition(".")[0] in _CLASSES for module in script.modules)


def is_module(script: Script, node: ast.ClassDef | None) -> bool:
    """Return True for a class of the script that is derived from LightningModule."""
    return any(cls.node is node and "LightningModule" in _inherited(cls) for cls in script.classes)


def together(script: Script, call: Call) -> str:
    """Return the kind of object whose method all ranks must call together, or an empty text for other calls."""
    if call.local or (call.method in _LOGS and not _is_synchronized(call)):
        return ""
    kinds = _kinds(script, call.receiver) if call.method in METHODS else ()
    found = (kind for made, kind in kinds if call.method in _TOGETHER.get(kind, ()) and _is_of_all(call, made, kind))
    return next(found, "")


def _is_of_all(call: Call, made: Value, kind: str) -> bool:
    if call.method in _BY_GROUP and kind != "Accelerator" and not call.lacks(1, "group"):
        return False
    if call.method == "backward" and any("no_" in context.text for context in call.place.withs):
        return False  # no_sync, no_backward_sync
    if names := _SHARDED_BY.get(call.method):
        arguments = (option for value in made.parts for option in value.makers())
        return any(each.given(None, *names) for each in (*made.makers(), *arguments))
    if not isinstance(made, Call) or kind == "Accelerator":  # its objects share one state
        return True
    is_one_process = made.argument(None, "devices").constant in (1, "1") and made.lacks(None, "num_nodes")
    return chosen_ranks(made.conditions) is None and not is_one_process


#: Methods that wrap models, by the kind of object, and what of its maker's arguments says that parameters are sharded.
_WRAPS = {"prepare": "Accelerator", "prepare_model": "Accelerator", "setup": "Fabric", "setup_module": "Fabric"}
_SHARDS = re.compile(r"fsdp|FullySharded|FSDPPlugin|deepspeed_stage_3|stage=3|zero_stage=3|ModelParallelStrategy")


def prepared(script: Script, value: Value) -> Iterator[tuple[str, Value, bool]]:
    """Yield the kind of object that wraps a model, the model, and whether it certainly shards the parameters."""
    call, position = value, 0
    if value.kind == "element" and value.attribute.isdecimal():
        call, position = value.owner, int(value.attribute)
    if not isinstance(call, Call) or _WRAPS.get(call.method) is None or position >= len(call.args):
        return
    for made, kind in _kinds(script, call.receiver):
        if kind == _WRAPS[call.method]:
            makers = list(made.makers())
            options = [text for maker in makers for given in maker.arguments for text in _texts(given)]
            if not any("broadcast_buffers=False" in text for text in options):
                yield kind, call.args[position], any(map(_SHARDS.search, options))


def _texts(value: Value) -> Iterator[str]:
    return (option.text for option in value.alternatives())


def _is_synchronized(call: Call) -> bool:
    of_one = call.argument(None, "rank_zero_only")
    return call.argument(None, "sync_dist").constant is True and (not of_one or of_one.constant is False)


def _kinds(script: Script, value: Value, depth: int = 6) -> Iterator[tuple[Value, str]]:
    """Yield the kinds of object that a value may be, each with what made the object, or the value it comes from."""
    for option in value.objects() if depth else ():
        if isinstance(option, Call) and option.local is None:
            yield from ((option, kind) for kind in _named(option.name))
        elif option.kind == "attribute":
            kinds = _kinds(script, option.owner, depth - 1)
            yield from (
                (made, _PARTS[kind, option.attribute]) for made, kind in kinds if (kind, option.attribute) in _PARTS
            )
        elif option.kind == "element" and option.owner.name == "deepspeed.initialize" and option.attribute == "0":
            yield option, "DeepSpeed engine"
        if cls := script.instances.get(option):
            yield from ((option, kind) for kind in _inherited(cls))
        elif option in script.parameters:
            annotation, owner = script.parameters[option]
            yield from ((option, kind) for kind in _inherited(annotation))
            hooks = ((kind, option.attribute) for kind in _inherited(owner) if kind == "Callback")
            yield from ((option, _PARTS[hook]) for hook in hooks if hook in _PARTS)


def _inherited(value: Value) -> Iterator[str]:
    """Yield the kinds that an annotation names, or that a class of the script is derived from."""
    return (kind for source in value.sources() for kind in _named(source.name))


def _named(name: str) -> Iterator[str]:
    package, _, rest = name.partition(".")
    return (kind for end, kind in _CLASSES.get(package, {}).items() if rest.endswith(end))
