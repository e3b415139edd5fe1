"""The steps of a training script, for several rules: forward and backward passes, steps, loaders, sizes.

loss = criterion(ddp_model(images), target)      a forward of the wrapped model; loss is made of it
scaler.scale(loss).backward()                    a backward, whose loss is what scale() was given
optimizer.step(), scaler.step(optimizer)         steps of an optimizer
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from ddp_doctor.features.lint import names
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import NOTHING, Call, Condition, Loop, Value, is_result, written

SCALERS = ("torch.amp.GradScaler", "torch.cuda.amp.GradScaler")
#: Positions of DataLoader's parameters.
BATCH_SIZE, SHUFFLE, SAMPLER, BATCH_SAMPLER, WORKERS, COLLATE, PIN_MEMORY = 1, 2, 3, 4, 5, 6, 7
#: Functions that pass the batches of a loader on.
_PASSES_ON = ("enumerate", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm", "iter", "next")
#: Functions that reduce any tensor, and names of functions that reduce gradients.
_REDUCED = re.compile(r"^(all_reduce|reduce$|reduce_scatter|all_gather)")
_GRADIENTS_REDUCED = re.compile(r"(reduce|average|sync)\w*_grad|sync_grad")
#: Derivations of a loss for logging or counting.
_READ = frozenset(("detach", "item", "clone", "mean", "sum"))
_MADE = frozenset(f"torch.{name}" for name in ("tensor", "zeros", "ones", "as_tensor", "stack"))
#: Methods of a module that do not run its forward.
_NO_FORWARD = frozenset(
    (
        *("parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules"),
        *("children", "state_dict", "load_state_dict", "train", "eval", "zero_grad", "to", "cuda", "cpu"),
        *("requires_grad_", "no_sync"),
    )
)
#: Functions that return the parts of a module, and functions that iterate over them in some order.
_PARTS_OF = ("children", "named_children", "modules", "named_modules", "values", "items", "get_submodule")
_GOES_THROUGH = ("enumerate", "reversed", "list", "tuple")
_DEEPEST = 8
_EVALUATION = re.compile(
    r"(^|[^a-z])(val|valid|validation|test|eval|evaluation|dev|infer|inference|predict)", re.IGNORECASE
)
_BATCH_NORM = tuple(f"torch.nn.BatchNorm{dimensions}d" for dimensions in (1, 2, 3))
_WITH_BATCH_NORM = re.compile(
    r"^torchvision\.models\.(\w+\.)?(resnet|resnext|wide_resnet|densenet|mobilenet|mnasnet|regnet|shufflenet|"
    r"efficientnet|inception|googlenet)\w*$"
)
_NOT_AN_OPTIMIZER = re.compile(r"sched|profil|prof$|scaler|^env|sampler|meter$|timer$|bar$|^ema|warmup", re.IGNORECASE)


def surely_ddp(value: Value) -> bool:
    """Return True if a value is a model wrapped in DistributedDataParallel on every path through the script."""
    return is_result(value, lambda call: call.name == names.DDP)


def keeps_batch_statistics(call: Call) -> bool:
    """Return True if a call makes a BatchNorm layer with buffers, or a torchvision model that has them."""
    kept = call.argument(4, "track_running_stats").constant is not False
    return bool(_WITH_BATCH_NORM.match(call.name)) or (call.name in _BATCH_NORM and kept)


def is_forward(script: Script, call: Value) -> bool:
    """Return True if a call is a forward of the wrapped model."""
    return isinstance(call, Call) and not call.method and script.is_ddp(call.callee)


def forwards_in(script: Script, value: Value) -> list[Call]:
    """Return the forwards of the wrapped model that a value depends on."""
    if value not in script.forwards:
        script.forwards[value] = [call for call in value.calls() if is_forward(script, call)]
    return script.forwards[value]


@lru_cache(maxsize=1)  # several rules ask
def passes(script: Script) -> tuple[Call, ...]:
    """Return the wrapped model's backward passes, even if they bypass the wrapper or use unknown functions."""
    return tuple(
        call
        for call in (script.methods("backward") if script.wraps else ())
        if forwards_in(script, call.receiver)
        or any(
            script.is_ddp(part) or (isinstance(part, Call) and goes_around(script, part))
            for part in call.receiver.sources()
        )
    )


def goes_around(script: Script, call: Call) -> bool:
    """Return True for ``model.module(...)``, ``model.module.loss(...)``, or ``net(...)`` of a wrapped ``net``."""
    for inner in (call.callee, call.receiver if call.method not in _NO_FORWARD else NOTHING):
        options = list(inner.wrapper.objects()) if inner.wrapper is not inner else []
        if options and all(map(script.is_ddp, options)):
            return True
    wraps = [wrap for wrap in script.wraps if wrap.precedes(call)]
    models = [] if call.method else list(call.callee.objects())
    return bool(models) and all(
        any(model in wrap.argument(0, "module").objects() for wrap in wraps) for model in models
    )


def reduces_gradients(call: Call) -> bool:
    """Return True if a call may reduce gradients manually; an all-reduce of the loss for logging does not count."""
    name = call.name.rpartition(".")[2] or call.method
    if not call.name.startswith("torch.") and _GRADIENTS_REDUCED.search(name):
        return True
    if not _REDUCED.search(name) or not (call.args or call.keywords):
        return False
    made = [part for given in call.arguments for part in given.sources()]
    calls = [part for part in made if isinstance(part, Call)]
    if any(part.kind == "attribute" and part.attribute == "grad" for part in made):
        return True
    if any(part.method in ("parameters", "named_parameters") or part.name == "torch.autograd.grad" for part in calls):
        return True
    return not any(part.method in _READ or part.name in _MADE for part in calls)


def backwards(script: Script) -> Iterator[Call]:
    """Return the backward passes through the wrapped model, which reduce its gradients."""
    return (call for call in script.methods("backward") if forwards_in(script, call.receiver))


def optimizer_steps(script: Script) -> Iterator[Call]:
    """Yield calls of ``optimizer.step()`` and ``scaler.step(optimizer)``."""
    for call in script.methods("step"):
        text = written(call.node.func).removesuffix(".step")
        is_scaler = is_scaler_of(call.receiver) or "scaler" in text.lower()
        if (is_scaler and call.args) or not (_NOT_AN_OPTIMIZER.search(text.rpartition(".")[2]) or call.args):
            yield call


def is_scaler_of(value: Value) -> bool:
    """Return True if a value is torch's GradScaler."""
    return any(call.name in SCALERS for call in value.makers())


def uses_gpu(script: Script) -> bool:
    """Return True if the script trains on GPUs; False if it starts only gloo."""
    backends = [group.argument(0, "backend") for group in script.named(names.INIT)]
    if backends and all(backend.constant == "gloo" for backend in backends):
        return False
    return script.uses("device_ids", "cuda", "nccl")


def no_gradients(call: Call) -> bool:
    """Return True if no gradient is recorded during the call."""
    marks = [context.text for context in call.place.withs]
    function = call.place.function
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        marks += map(written, function.decorator_list)
    return any(re.search(r"no_grad|inference_mode|set_grad_enabled\(False", mark) for mark in marks)


def loaders(script: Script) -> Iterator[Call]:
    """Return the DataLoaders that, by their names, are not for evaluation."""
    return (loader for loader in script.named(names.LOADER) if not is_for_evaluation(script, loader))


def is_for_evaluation(script: Script, call: Call) -> bool:
    """Return True if names around a loader or sampler indicate validation or tests."""
    words = [written_to(script, call), call.argument(0, "dataset").text]
    name = getattr(call.place.function, "name", "")
    words.append("" if "train" in name.lower() else name)  # except train_and_validate, which does both
    return any(map(_EVALUATION.search, words))


def is_from_a_loader(value: Value) -> bool:
    """Return True if a value is a batch of a DataLoader or part of one, but not the counter of ``enumerate``."""
    if value.kind == "element" and value.attribute == "0" and value.owner.kind == "loop":
        over = value.owner.owner
        while isinstance(over, Call) and over.name in _PASSES_ON and over.args:
            if over.name == "enumerate":
                return False
            over = over.args[0]
    source = looped_over(value)
    return source is not value and is_result(source, lambda call: call.name == names.LOADER)


def looped_over(value: Value) -> Value:
    """Return the iterable of an element's loop, without ``enumerate`` and progress bars; otherwise the value itself."""
    while value.kind in ("element", "loop"):
        value = value.owner
    return passed_on(value)


def passed_on(value: Value) -> Value:
    """Return the value inside ``enumerate``, progress bars and similar calls."""
    while isinstance(value, Call) and value.name in _PASSES_ON and value.args:
        value = value.args[0]
    return value


@lru_cache(maxsize=1)  # for each loader
def iterations(script: Script) -> tuple[tuple[Value, tuple[Loop, ...]], ...]:
    """Return the iterables of loops and ``iter``, with the loops around them."""
    around = dict.fromkeys(assignment.place.loops for assignment in script.assignments)
    by_loop = ((loops[-1].over, loops[:-1]) for loops in around if loops)
    by_call = ((call.args[0], call.loops) for call in script.named("iter") if call.args)
    by_yield = ((over, place.loops) for over, place in script.delegated)
    return (*((over, loops) for over, loops in by_loop if over), *by_call, *by_yield)


def written_to(script: Script, value: Value) -> str:
    """Return the target of the assignment that contains a value, as in the script, or an empty text."""
    node = script.assigned_in.get(getattr(value.node, "lineno", 0))
    if node is None:
        return ""
    first = node.targets[0]
    if isinstance(first, ast.Tuple) and isinstance(node.value, ast.Tuple):  # train, val = DataLoader(), DataLoader()
        for target, given in zip(first.elts, node.value.elts, strict=False):
            if any(part is value.node for part in ast.walk(given)):
                return written(target)
    return ", ".join(map(written, node.targets))


def operation(value: Value) -> tuple[ast.operator | None, Value, Value]:
    """Return operator and operands of ``a / b`` and ``a /= b``; None and NOTHING for other values."""
    node = value.node
    if value.kind == "other" and isinstance(node, ast.BinOp | ast.AugAssign) and len(value.parts) == 2:
        return node.op, value.parts[0], value.parts[1]
    return None, NOTHING, NOTHING


def whole(value: Value) -> Value:
    """Return the model of a part: ``model`` of ``for layer in model.layers``, ``model.head``, ``model.blocks[0]``."""
    for _ in range(_DEEPEST):
        if value.owner:
            value = value.owner
        elif isinstance(value, Call) and value.method in _PARTS_OF:
            value = value.receiver
        elif isinstance(value, Call) and value.name in _GOES_THROUGH and value.args:
            value = value.args[0]
        else:
            break
    return value


def beyond(call: Call, other: Call) -> tuple[Condition, ...]:
    """Return the conditions of a call that another call does not share."""
    shared = {id(condition.test) for condition in other.conditions}
    return tuple(condition for condition in call.conditions if id(condition.test) not in shared)


def exclude_each_other(call: Call, other: Call) -> bool:
    """Return True if two calls are in opposite branches of one condition, so each iteration runs only one of them."""
    return any(
        mine.test is its.test and mine.holds != its.holds for mine in call.conditions for its in other.conditions
    )


def counts(test: Value, depth: int = 3) -> bool:
    """Return True if a test is periodic, ``step % 100 == 0`` or ``(i + 1) % k``, directly or through a name."""
    if any(isinstance(node, ast.Mod) for node in ast.walk(test.node)):
        return True
    return bool(depth) and test.kind in ("other", "choice") and any(counts(part, depth - 1) for part in test.parts)
