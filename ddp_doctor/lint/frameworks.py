"""Objects of Lightning, Accelerate, Transformers and DeepSpeed, and what all ranks must call of them together.

fabric = Fabric(devices=8)           a Fabric, by what made it
def run(tool: "Accelerator"):        an Accelerator, by its annotation
class Net(LightningModule):          self is a LightningModule, self.trainer its Trainer

Sources: lightning 2.6, accelerate 1.15, transformers 5.24, deepspeed 0.16, ray 2.60.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from ddp_doctor.lint.ranks import chosen_ranks
from ddp_doctor.lint.scopes import Class
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, Value

# fmt: off
Kind = Literal[
    "Fabric", "Trainer of Lightning", "LightningModule", "Callback", "strategy",
    "Accelerator", "Trainer of Transformers", "TrainingArguments", "DeepSpeed engine",
]
# fmt: on
_LIGHTNING: Mapping[str, Kind] = {
    "Fabric": "Fabric",
    "Trainer": "Trainer of Lightning",
    "Callback": "Callback",
    "LightningModule": "LightningModule",
    "LightningDataModule": "LightningModule",
}
#: Classes by their package. The modules between do not matter: packages export them under several.
_CLASSES: Mapping[str, Mapping[str, Kind]] = {
    **dict.fromkeys(("lightning", "pytorch_lightning", "lightning_fabric"), _LIGHTNING),
    "accelerate": dict.fromkeys(("Accelerator", "PartialState", "AcceleratorState"), "Accelerator"),
    "transformers": {
        **dict.fromkeys(("Trainer", "Seq2SeqTrainer"), "Trainer of Transformers"),
        **dict.fromkeys(("TrainingArguments", "Seq2SeqTrainingArguments"), "TrainingArguments"),
    },
    "trl": {f"{name}Trainer": "Trainer of Transformers" for name in ("SFT", "DPO", "GRPO", "Reward", "KTO", "ORPO")},
    "deepspeed": {"DeepSpeedEngine": "DeepSpeed engine"},
}
#: Objects that belong to others.
_ATTRIBUTES: Mapping[tuple[Kind, str], Kind] = {
    ("Fabric", "strategy"): "strategy",
    ("Trainer of Lightning", "strategy"): "strategy",
    ("LightningModule", "trainer"): "Trainer of Lightning",
    ("LightningModule", "fabric"): "Fabric",
    ("Trainer of Transformers", "accelerator"): "Accelerator",
    ("Trainer of Transformers", "args"): "TrainingArguments",
    ("Accelerator", "state"): "Accelerator",
}
#: Parameters of a callback's hooks.
_OF_HOOKS: Mapping[str, Kind] = {"trainer": "Trainer of Lightning", "pl_module": "LightningModule"}


class Together(NamedTuple):
    """Methods that all ranks must call; ``group`` is the position of the argument that may exclude some ranks."""

    methods: tuple[str, ...]
    group: int | None = None
    only: tuple[str, ...] = ()  # arguments, one of which its maker must have: without sharding no rank waits
    is_doubtful: bool = False  # depends on the configuration


_LOGGED = ("log", "log_dict")
_TOGETHER: Mapping[Kind, tuple[Together, ...]] = {
    "Fabric": (
        Together(("barrier", "broadcast", "save", "load", "backward", "setup", "setup_module", "rank_zero_first")),
        Together(("all_gather", "all_reduce"), group=1),
    ),
    "Trainer of Lightning": (Together(("fit", "validate", "test", "predict", "save_checkpoint")),),
    "LightningModule": (Together(("all_gather",), group=1), Together((*_LOGGED, "manual_backward"))),
    "strategy": (
        Together(("barrier", "broadcast", "reduce_boolean_decision")),
        Together(("all_gather", "reduce", "all_reduce"), group=1),
    ),
    "Accelerator": (
        Together(("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "pad_across_processes", "backward")),
        Together(("check_trigger", "main_process_first", "local_main_process_first")),
        Together(("get_state_dict", "save_state", "load_state"), only=("fsdp_plugin",)),
        Together(("get_state_dict", "save_state", "load_state"), only=("deepspeed_plugin",), is_doubtful=True),
    ),
    "Trainer of Transformers": (
        Together(("train", "evaluate", "predict")),
        Together(("save_model",), only=("fsdp", "deepspeed"), is_doubtful=True),
    ),
    "TrainingArguments": (Together(("main_process_first",)),),
    "DeepSpeed engine": (
        Together(("save_checkpoint", "load_checkpoint", "backward", "step")),
        Together(("save_16bit_model",), is_doubtful=True),
    ),
}
METHODS = frozenset(method for rows in _TOGETHER.values() for row in rows for method in row.methods)
#: Functions that all ranks, or all workers of Ray, must call.
FUNCTIONS = frozenset(
    (
        *("ray.train.report", "ray.air.session.report"),
        *("ray.train.collective.barrier", "ray.train.collective.broadcast_from_rank_zero"),
        *(
            f"accelerate.utils.{module}{name}"
            for module in ("", "operations.")
            for name in ("gather", "gather_object", "broadcast", "broadcast_object_list", "reduce")
        ),
        *("accelerate.utils.pad_across_processes", "accelerate.utils.wait_for_everyone"),
    )
)
_DEEPEST = 6


def together(script: Script, call: Call) -> tuple[Kind, Together] | None:
    """The kind of object and the row of a method that all ranks must call; None if it is no such method."""
    if call.method not in METHODS or (call.method in _LOGGED and not _is_synchronized(call)):
        return None
    for made, kind in _kinds(script, call.receiver):
        for row in _TOGETHER.get(kind, ()):
            if call.method in row.methods and _is_of_all(call, made, row):
                return kind, row
    return None


def _is_of_all(call: Call, made: Value, row: Together) -> bool:
    if row.group is not None and not call.lacks(row.group, "group"):
        return False
    if call.method == "backward" and any("no_" in context.text for context in call.place.withs):
        return False  # no_sync, no_backward_sync
    given = [made, *(made.arguments if isinstance(made, Call) else ())]
    calls = [option for value in given for option in value.makers()]
    if row.only and not any(each.given(None, *row.only) for each in calls):
        return False
    is_alone = isinstance(made, Call) and (chosen_ranks(made.conditions) is not None or _is_of_one_process(made))
    return not is_alone or made.name.startswith("accelerate.")  # all its objects share one state


def _is_of_one_process(made: Call) -> bool:
    nodes = made.argument(None, "num_nodes").constant or 1
    return made.argument(None, "devices").constant in (1, "1") and nodes == 1


def _is_synchronized(call: Call) -> bool:
    of_one = call.argument(None, "rank_zero_only")
    return call.argument(None, "sync_dist").constant is True and (not of_one or of_one.constant is False)


def _kinds(script: Script, value: Value, depth: int = _DEEPEST) -> Iterator[tuple[Value, Kind]]:
    """The kinds of object that a value may be, each with what made the object, or that it comes from."""
    for option in value.objects() if depth else ():
        if isinstance(option, Call) and option.local is None:
            yield from ((option, kind) for kind in _named(option.name))
        elif option.kind == "attribute":
            for made, kind in _kinds(script, option.owner, depth - 1):
                if found := _ATTRIBUTES.get((kind, option.attribute)):
                    yield made, found
        elif option.kind == "element" and option.owner.name == "deepspeed.initialize" and option.attribute == "0":
            yield option, "DeepSpeed engine"
        if cls := script.instances.get(option):
            yield from ((option, kind) for kind in _inherited(cls))
        elif option in script.parameters:
            annotation, owner = script.parameters[option]
            yield from ((option, kind) for kind in _annotated(annotation))
            if owner and "Callback" in _inherited(owner) and option.attribute in _OF_HOOKS:
                yield option, _OF_HOOKS[option.attribute]


def _annotated(annotation: Value) -> Iterator[Kind]:
    for part in annotation.sources():
        if isinstance(part, Class):
            yield from _inherited(part)
        yield from _named(part.name)


def _inherited(cls: Class, depth: int = _DEEPEST) -> Iterator[Kind]:
    for base in cls.parts if depth else ():
        for option in base.alternatives():
            if isinstance(option, Class):
                yield from _inherited(option, depth - 1)
            yield from _named(option.reference)


def _named(name: str) -> Iterator[Kind]:
    package, _, rest = name.partition(".")
    if kind := _CLASSES.get(package, {}).get(rest.rpartition(".")[2]):
        yield kind
