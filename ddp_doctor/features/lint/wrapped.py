"""Models whose forward makes ranks wait for each other, depending on the wrapper and on buffers.

model = DDP(resnet50())            buffers: each forward broadcasts them, even in eval mode and no_grad
model = DDP(build())               unknown: build() may make a model with buffers
model = DDP(nn.Linear(8, 8))       none: a forward of one rank does not wait
model = FSDP(anything)             sharded: each forward gathers parameters
model = accelerator.prepare(net)   the same by the model, and by the plugin of the Accelerator

Sources: torch 2.13 torch/nn/parallel/distributed.py will_sync_module_buffers, torch/distributed/fsdp.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import PurePath
from typing import Literal, NamedTuple

from ddp_doctor.features.lint import frameworks, names, siblings, training
from ddp_doctor.features.lint.ranks import RankTest, chosen_ranks, ranks_under
from ddp_doctor.features.lint.scopes import Class
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Value, written

State = Literal["sharded", "buffers", "unknown", "none"]

SHARDED = (names.FSDP[0], "fairscale.nn.FullyShardedDataParallel")
#: Models of torchvision without buffers.
_WITHOUT_BUFFERS = re.compile(r"^torchvision\.models\.(\w+\.)?(alexnet|vgg\d+|squeezenet\w+|vit_\w+|convnext_\w+)$")
#: Layers of torch.nn that have buffers, or may have them. All others have none.
_WITH_BUFFERS = re.compile(r"^torch\.nn\.((Sync)?BatchNorm|InstanceNorm|Lazy|Buffer|utils|parallel)")
_BUILTIN = ("super", "range", "len", "int", "list", "zip", "enumerate", "print", "isinstance", "max", "min", "sum")
_WRITES_TEXT = ("math.", "torch.", "numpy.", "itertools.", "logging.", "warnings.")
_HANDS_ON = (names.CONVERT_SYNC_BN, "torch.compile", "torch.jit.script")
_DEEPEST = 8
#: Contexts that disable the exchange between ranks.
_ALONE = re.compile(r"no_sync|join", re.IGNORECASE)


class Wrapped(NamedTuple):
    """A wrapped model: the name of the wrapper, and the effect of its forward."""

    wrapper: str
    state: State
    elsewhere: str = ""  # file and line of the forward, if a function of another file runs it
    who: RankTest | None = None  # the ranks that run it, if the function itself excludes some


def forwards(script: Script) -> Iterator[tuple[Call, Wrapped]]:
    """Yield the calls of wrapped models, and of methods of sharded ones that run their forward."""
    is_wrapped = script.wraps or script.calls_any(*SHARDED, names.FSDP[1]) or frameworks.are_imported(script)
    for call in script.calls if is_wrapped else ():
        if "." in call.name and (model := _run_elsewhere(script, call)):
            yield call, model
        is_generation = call.method == "generate"
        if call.name or (call.method and not is_generation) or call.local is not None:
            continue
        found = wrapped(script, call.receiver if is_generation else call.callee, call)
        if found is None or (is_generation and found.state != "sharded"):
            continue
        if not any(_ALONE.search(context.text) for context in call.place.withs):
            yield call, found


def _run_elsewhere(script: Script, call: Call) -> Wrapped | None:
    """Return the wrapped model passed to a function of another file if only some ranks run its forward there."""
    if call.name.startswith("torch."):
        return None
    given = [
        (each, found) for each in call.arguments if (found := wrapped(script, each, call)) and found.state != "none"
    ]
    other = siblings.script_of(script, call.name) if given else None
    for value, found in given if other else ():
        for inner in other.calls if other else ():
            if not _is_parameter(inner, call, value):
                continue
            who = chosen_ranks(call.conditions) or ranks_under(inner.conditions)
            if who and who.differs:
                at = f"{PurePath(other.path).name}:{inner.node.lineno}" if other else ""
                return found._replace(elsewhere=at, who=None if chosen_ranks(call.conditions) else who)
    return None


def _is_parameter(inner: Call, call: Call, value: Value) -> bool:
    """Return True if a call in another file calls the parameter that this argument is passed to."""
    function = inner.place.function
    if inner.callee.kind != "parameter" or inner.method or not isinstance(function, ast.FunctionDef):
        return False
    places = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    named = dict(zip(places, call.args, strict=False)) | call.keywords
    return function.name == call.name.rpartition(".")[2] and named.get(inner.callee.attribute) is value


def wrapped(script: Script, model: Value, at: Call) -> Wrapped | None:
    """Return the wrapper of a model on every path through the script when a call runs, or None if uncertain.

    ``if use_ddp: model = DDP(model)`` counts as wrapped.
    """
    options = list(model.objects())
    wraps = [made for made in options if isinstance(made, Call) and made.name in (names.DDP, *SHARDED) and made.args]
    inner = {each for made in wraps for each in made.args[0].objects()}
    found = [_wrapped(script, option, at) for option in options if option not in inner]
    kinds = set(filter(None, found))
    if not kinds or None in found:
        return None
    states = {kind.state for kind in kinds}
    return Wrapped(next(iter(kinds)).wrapper, states.pop() if len(states) == 1 else "unknown")


def _wrapped(script: Script, option: Value, at: Call) -> Wrapped | None:
    if isinstance(option, Call) and option.name == names.DDP:
        has_group = option.argument(names.SHARED_BY_DDP, "process_group") or option.argument(None, "device_mesh")
        return None if has_group else Wrapped("DDP", _of_ddp(script, option))
    if isinstance(option, Call) and option.name in SHARDED:
        shares = option.lacks(1, "process_group") and option.lacks(None, "device_mesh")
        return Wrapped("FSDP", "sharded") if shares else None
    if isinstance(option, Call) and option.name == "torch.compile" and option.args:
        return wrapped(script, option.args[0], at)
    if _is_fully_sharded(script, option, at):
        return Wrapped("FSDP", "sharded")
    for made, model, is_sharded in frameworks.prepared(script, option):
        return Wrapped(made, "sharded" if is_sharded else buffers(script, model))
    return None


def _is_fully_sharded(script: Script, option: Value, at: Call) -> bool:
    return any(
        option is shard or (shard.precedes(at) and list(shard.argument(0, "module").objects()) == [option])
        for shard in script.named(names.FSDP[1])
        if not training.exclude_each_other(shard, at)
    )


def _of_ddp(script: Script, wrap: Call) -> State:
    options = (wrap.argument(4, "broadcast_buffers"), wrap.argument(None, "forward_sync_buffers"))
    if any(option.constant is False for option in options):
        return "none"
    state = buffers(script, wrap.argument(0, "module"))
    return "unknown" if state == "buffers" and (wrap.has_stars or all(options)) else state


@lru_cache(maxsize=50)  # several calls run one model
def buffers(script: Script, model: Value, depth: int = _DEEPEST) -> State:
    """Return whether a model has buffers; unknown if the script does not show it."""
    if any(training.keeps_batch_statistics(call) for call in model.calls()):
        return "buffers"
    states = {_buffers(script, option, depth) for option in model.objects()} if depth else set[State]()
    return states.pop() if len(states) == 1 else "unknown"


def _buffers(script: Script, option: Value, depth: int) -> State:
    if not isinstance(option, Call):
        return "unknown"
    if isinstance(option.local, ast.ClassDef):
        cls = next((cls for cls in script.classes if cls.node is option.local), None)
        return _of_class(script, cls, depth) if cls else "unknown"
    if option.name in _HANDS_ON and option.args:
        return buffers(script, option.args[0], depth - 1)
    if _WITHOUT_BUFFERS.match(option.name) or _keeps_no_statistics(option):
        return "none"
    if not option.name.startswith("torch.nn.") or _WITH_BUFFERS.match(option.name):
        return "unknown"
    parts = (part for value in option.arguments for part in (value.parts if value.kind == "tuple" else (value,)))
    made = [part for part in parts if isinstance(part, Call) and not part.method]
    if option.has_stars or any(part.kind not in ("constant", "call", "attribute", "parameter") for part in option.args):
        made += [part for part in option.calls() if part is not option and not part.method]
    return _worst({_buffers(script, part, depth - 1) for part in made if depth and part.name not in _BUILTIN})


def _keeps_no_statistics(layer: Call) -> bool:
    kept = layer.argument(4, "track_running_stats").constant
    return kept is False if "BatchNorm" in layer.name else "InstanceNorm" in layer.name and kept is not True


def _worst(states: set[State]) -> State:
    return next((state for state in ("buffers", "unknown") if state in states), "none")


def _of_class(script: Script, cls: Class, depth: int) -> State:
    known = [base for base in cls.parts if base.name == "torch.nn.Module"]
    own = [base for base in cls.parts if isinstance(base, Class)]
    if not depth or len(known) + len(own) < len(cls.parts):
        return "unknown"
    body = ast.walk(cls.node)
    if any(isinstance(node, ast.Attribute) and node.attr in ("register_buffer", "Buffer") for node in body):
        return "buffers"
    states = {_of_class(script, base, depth - 1) for base in own}
    for call in script.calls:
        if call.place.cls is cls.node and getattr(call.place.function, "name", "") == "__init__" and _makes(call):
            states.add("buffers" if training.keeps_batch_statistics(call) else _buffers(script, call, depth - 1))
    return _worst(states)


def _makes(call: Call) -> bool:
    """Return True if a call in a constructor may make a part of the model."""
    if call.local is not None:
        return isinstance(call.local, ast.ClassDef)
    name = call.name or written(call.node.func)
    return name.startswith("torch.nn.") or not (
        call.method or name in _BUILTIN or name.startswith((*_WRITES_TEXT, "super"))
    )
