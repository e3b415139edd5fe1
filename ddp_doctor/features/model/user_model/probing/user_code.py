"""The user's own code on a rank: from ``--model package.module:factory`` to a model and its batches.

Exceptions of that code become values, with the innermost line of the code. The signature of forward decides which parts
of a batch are its arguments: in a data set's ``(inputs, target)``, the target is not.

forward(self, x)               (inputs, target)   the target is for the loss
forward(self, ids, labels)     (ids, labels)      both are arguments
forward(self, x, mask=None)    (inputs, target)   one number per sample is not a mask
"""

import importlib
import inspect
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ddp_doctor.features.model.user_model.facts import Phase, Trouble
from ddp_doctor.model.error_text import did_you_mean, quoted
from ddp_doctor.parse.frames import is_of_the_job, of_the_job
from ddp_doctor.parse.redact import KEPT_BACK, is_withheld

T = TypeVar("T")
_LONGEST_MESSAGE = 300


class Misuse(Exception):
    """The object that --model names is unusable; the message explains it in a sentence."""


def attempt(phase: Phase, call: Callable[[], T]) -> tuple[T | None, Trouble | None]:
    """Return the call's result, or how it failed, even for an exit of the program."""
    try:
        return call(), None
    except Misuse as problem:
        return None, Trouble(phase=phase, message=str(problem), misuse=True)
    except BaseException as error:  # noqa: BLE001 - any failure of the user's code ends here
        return None, trouble(phase, error)


def trouble(phase: Phase, error: BaseException) -> Trouble:
    """Return an exception of the user's code, shortened and without credentials."""
    frames = traceback.extract_tb(error.__traceback__)
    shown = of_the_job([f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames])[-1:]
    where = shown[0].partition(" in ")[0] if shown else ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    return Trouble(
        phase=phase,
        type=type(error).__name__,
        message=_message(error),
        where=where,
        out_of_memory="OutOfMemoryError" in type(error).__name__,
    )


def _message(error: BaseException) -> str:
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - str() of a user's exception may fail
        return "(it cannot be put into words)"
    return KEPT_BACK if is_withheld("", message) else message[:_LONGEST_MESSAGE]


def calling_line(frame: Any) -> str:
    """Return the user's line that led to this frame."""
    while frame is not None:
        if is_of_the_job(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


#: Equal on all ranks: DDP does not need equal seeds, but the comparisons do.
SEED = 20240229


@dataclass(frozen=True)
class Loaded:
    """The factory's result: the model, a function that makes its batches, its loss, and DDP's options.

    ``optimizer`` makes an optimizer from parameters; ``step`` runs a full step of the job, including clipping and
    accumulation, and returns its loss; ``units`` are the modules to shard, or their classes; ``mesh`` is a DeviceMesh.
    """

    model: Any
    make_batch: Callable[[int], Any] | None = None
    loss: Callable[[Any, Any], Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Callable[[Any], Any] | None = None
    step: Callable[[Any, Any, Any], Any] | None = None
    units: Sequence[Any] = ()
    mesh: Any = None


def seed(value: int = SEED) -> None:
    """Seed all generators that a model may use; numpy's only if numpy is already imported.

    ``torch.manual_seed`` formats a stack for each unused kind of device, which takes a quarter of a small model's pass.
    """
    import torch

    random.seed(value)
    torch.default_generator.manual_seed(value)
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        cuda.manual_seed_all(value)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value)


@contextmanager
def generators_kept(device: str) -> Iterator[None]:
    """Restore the generators after the block, for later checks on this rank."""
    import torch

    numpy = sys.modules.get("numpy")
    pythons, numpys = random.getstate(), None if numpy is None else numpy.random.get_state()
    devices = [torch.device(device)] if device.startswith("cuda") else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(pythons)
        if numpy is not None:
            numpy.random.set_state(numpys)


def find(name: str) -> Callable[[], Any]:
    """Import the module and find the factory. Raises Misuse, and whatever the import raises."""
    module_name, _, path = name.partition(":")
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)  # as `python -m` does
    sys.argv = [module_name]  # hides ddp-doctor's arguments from modules that parse them
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise Misuse(f"found no module {quoted(error.name)} in {quoted(here)} or on the Python path") from None
        raise
    source = getattr(found, "__file__", None) or module_name
    for part in path.split("."):
        if not hasattr(found, part):
            near = did_you_mean(part, [known for known in dir(found) if not known.startswith("_")])
            raise Misuse(f"{source} has no function {quoted(path)}{near and f'; {near}'}")
        found = getattr(found, part)
    import torch

    if isinstance(found, torch.nn.Module):
        raise Misuse(f"{name} is a model; name a callable that returns a model")
    if not callable(found):
        raise Misuse(f"{name} is of type {type(found).__name__}; name a callable that returns a model")
    if problem := not_taken(found):
        raise Misuse(f"{name} must be callable without arguments (Python says: {problem})")
    factory: Callable[[], Any] = found
    return factory


def not_taken(function: Callable[..., Any], *args: Any) -> str:
    """Return why a function does not take these arguments; empty if it does, or if its signature is unknown."""
    try:
        return _problem(inspect.signature(function), (args, {}))
    except (TypeError, ValueError):  # no signature: the call itself will show it
        return ""


#: What a factory may return by name, in a dict or as attributes of an object …
_NAMES = ("model", "make_batch", "loss", "ddp")
#: … and only in a dict, because a user's object may use the same attribute name for something else.
_MORE = ("optimizer", "step", "units", "mesh")
_TO_RETURN = "a torch.nn.Module, (model, make_batch), or a dict or an object with model, make_batch, loss and ddp"


def made(name: str, factory: Callable[[], Any]) -> Loaded:
    """Call the factory and read its result. Raises Misuse, and whatever the factory raises."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    seed()
    parts = _parts_by_name(name, factory())
    model = parts["model"]
    bare = uncompiled(model)
    if isinstance(bare, DistributedDataParallel | torch.nn.DataParallel):
        raise Misuse(
            f"{name} returns a model wrapped in {type(bare).__name__}; return it unwrapped, because ddp-doctor wraps it"
        )
    if not isinstance(model, torch.nn.Module):
        raise Misuse(f"{name} returns type {type(model).__name__} as the model; it must return {_TO_RETURN}")
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in model.modules()):
        raise Misuse(
            f"{name} returns a model wrapped in FullyShardedDataParallel (FSDP1); only fully_shard (FSDP2)"
            " can be tested"
        )
    make_batch, loss, options, optimizer, step, units, mesh = (parts.get(part) for part in (*_NAMES[1:], *_MORE))
    _require_function(name, make_batch, "make_batch(step)", 1, "lambda step: batch")
    _require_function(name, loss, "loss(output, batch)", 2, "lambda output, batch: mse_loss(output, batch[1])")
    _require_function(name, optimizer, "optimizer(parameters)", 1, "lambda parameters: AdamW(parameters, lr=1e-4)")
    _require_function(name, step, "step(model, optimizer, batch)", 3, "def step(model, optimizer, batch): ...")
    if options and not isinstance(options, Mapping):
        raise Misuse(f"{name} returns type {type(options).__name__} as the DDP options; they must be a dict")
    taken = {"module", "device_ids", "output_device", "process_group", "self"}
    known = set(inspect.signature(DistributedDataParallel.__init__).parameters) - taken
    unknown = [str(option) for option in options or () if option not in known]
    if unknown:
        raise Misuse(
            f"{name} returns the DDP option {quoted(unknown[0])}; remove it, because DDP does not have it or"
            " ddp-doctor sets it"
        )
    if not (mesh is None or hasattr(mesh, "mesh_dim_names")):
        raise Misuse(f"{name} returns type {type(mesh).__name__} as the mesh; it must be a DeviceMesh")
    return Loaded(parts["model"], make_batch, loss, dict(options or {}), optimizer, step, tuple(units or ()), mesh)


def _parts_by_name(name: str, returned: Any) -> Mapping[str, Any]:
    import torch

    if isinstance(returned, torch.nn.Module):
        return {"model": returned}
    if isinstance(returned, Mapping):
        parts = dict(returned)
        if unknown := [part for part in parts if part not in _NAMES + _MORE]:
            raise Misuse(
                f"{name} returns a dict with the unknown key {quoted(unknown[0])}; known keys:"
                f" {', '.join(_NAMES + _MORE)}"
            )
    elif isinstance(returned, tuple) and not hasattr(returned, "model"):
        parts = dict(zip(("model", "make_batch", "ddp"), returned, strict=False)) if len(returned) < 4 else {}
    else:
        parts = {part: getattr(returned, part) for part in _NAMES if hasattr(returned, part)}
    if "model" not in parts:
        kind = f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"type {type(returned).__name__}"
        raise Misuse(f"{name} returns {kind}; it must return {_TO_RETURN}")
    return parts


def uncompiled(model: Any) -> Any:
    """Return the module inside torch.compile's wrapper, or the model itself."""
    return getattr(model, "_orig_mod", model)


def _require_function(name: str, given: Any, form: str, arguments: int, example: str) -> None:
    """Raise Misuse if it is given but is not a function of this many arguments."""
    import torch

    what = form.partition("(")[0]
    if given is None:
        return
    if not callable(given) or isinstance(given, torch.nn.Module):
        kind = type(given).__name__
        raise Misuse(f"{name} returns type {kind} as {what}; it must be a function {form}, such as {example}")
    if problem := not_taken(given, *[None] * arguments):
        takes = {
            "make_batch": "the step",
            "loss": "the output and the batch",
            "optimizer": "the parameters",
            "step": "the model, the optimizer and a batch",
        }[what]
        raise Misuse(f"{what} of {name} must take {takes}, as in `def {form}` (Python says: {problem})")


Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
_WITH_A_LOSS = (
    "a dict with a loss: {'model': model, 'make_batch': make_batch,"
    " 'loss': lambda output, batch: cross_entropy(output, batch[1])}"
)


@dataclass(frozen=True)
class Form:
    """The signature of the model's forward, None if unknown, and the user's loss."""

    forward: inspect.Signature | None = None
    loss: Callable[[Any, Any], Any] | None = None


def form_of(loaded: Loaded) -> Form:
    """Return the form in which the model takes a batch."""
    bare = uncompiled(loaded.model)
    signature = None
    if not bare._forward_pre_hooks:  # noqa: SLF001 - a hook may change the arguments
        with suppress(TypeError, ValueError):  # not Python code
            signature = inspect.signature(bare.forward)
    return Form(signature, loaded.loss)


def is_several(given: Any) -> bool:
    """Return True if a batch is a tuple or list of values, not a packed sequence or the like."""
    return isinstance(given, tuple | list) and not callable(getattr(given, "to", None))


def arguments(given: Any, form: Form) -> Arguments:
    """Return the arguments of forward. Raises Misuse if it does not take them, or mistakes the target for another."""
    choices = list(_choices(given, form))
    if form.forward is None:
        return choices[0]
    chosen = next((choice for choice in choices if not _problem(form.forward, choice)), None)
    if _binds_without_last(given, form) and (chosen is None or _cannot_be(_last_parameter(given, form), given[-1])):
        raise no_argument(given, form)
    if chosen is None:
        names = ", ".join(map(repr, given)) if isinstance(given, Mapping) else f"{len(choices[0][0])} arguments"
        raise Misuse(
            f"forward({', '.join(form.forward.parameters)}) does not take what make_batch returns, {names}"
            f" ({_problem(form.forward, choices[0])}); for values that only the loss needs, return {_WITH_A_LOSS}"
        )
    return chosen


def may_hold_a_target(given: Any, form: Form) -> bool:
    """Return True if forward also works without a batch's last item and does not call that a target or label."""
    last = _last_parameter(given, form) if _binds_without_last(given, form) else None
    return last is not None and not any(word in last.name for word in ("label", "target"))


def _binds_without_last(given: Any, form: Form) -> bool:
    if form.loss is not None or form.forward is None or not is_several(given) or len(given) < 2:
        return False
    return not _problem(form.forward, (tuple(given[:-1]), {}))


def _last_parameter(given: Any, form: Form) -> inspect.Parameter:
    assert form.forward is not None
    parameters = list(form.forward.parameters.values())
    return parameters[min(len(given), len(parameters)) - 1]


def no_argument(given: Any, form: Form, raised: str = "takes no target") -> Misuse:
    """Return a Misuse that explains what to return instead of a batch that ends with a target."""
    what = "(inputs, target)" if len(given) == 2 else f"{len(given)} values with a target at the end"
    names = "" if form.forward is None else ", ".join(form.forward.parameters)
    return Misuse(
        f"make_batch returns {what}, but forward({names}) {raised}; return only the inputs, or {_WITH_A_LOSS}"
    )


def _choices(given: Any, form: Form) -> Iterator[Arguments]:
    """Yield the possible arguments, the most likely first. The user's loss always gets the entire batch."""
    if isinstance(given, Mapping):
        yield (), given if form.loss is None else _named(given, form)
    elif not is_several(given):
        yield (given,), {}
    else:
        inputs: Any = given[:-1] if form.loss is not None else ()
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            yield (), inputs[0]
        if inputs:
            yield tuple(inputs), {}
        if len(inputs) == 1 and is_several(inputs[0]):
            yield tuple(inputs[0]), {}
        yield tuple(given), {}


def _named(given: Mapping[str, Any], form: Form) -> Mapping[str, Any]:
    parameters = form.forward.parameters if form.forward is not None else {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def _problem(signature: inspect.Signature, choice: Arguments) -> str:
    try:
        signature.bind(*choice[0], **choice[1])
    except TypeError as error:
        return str(error)
    return ""


def _cannot_be(parameter: inspect.Parameter, value: Any) -> bool:
    """Return True if a value cannot be meant for an optional mask or switch, so it is a target."""
    import torch

    if isinstance(parameter.default, bool | int | float | str):
        return isinstance(value, torch.Tensor) and value.dim() == 1
    if parameter.default is not None or "mask" not in parameter.name:
        return False
    if isinstance(value, torch.Tensor):
        if value.dtype is torch.bool or value.dim() < 2:
            return value.dtype is not torch.bool
        # Integers other than 0 and 1, which no mask has.
        return not value.is_floating_point() and not value.is_meta and bool(((value < 0) | (value > 1)).any())
    return isinstance(value, int | str) or (isinstance(value, list) and any(isinstance(word, str) for word in value))
