"""The user's own code: from ``--model package.module:factory`` to a model and its batches, on a rank.

What that code raises is a value, with the innermost line of that code. What of a batch are the arguments of a forward
its signature tells: in a data set's ``(inputs, target)`` the target is none.

forward(self, x)               (inputs, target)   the target is for the loss
forward(self, ids, labels)     (ids, labels)      both are arguments
forward(self, x, mask=None)    (inputs, target)   a number for each sample is no mask
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
    """What --model names is not what it has to be; the message says so in a sentence."""


def attempt(phase: Phase, call: Callable[[], T]) -> tuple[T | None, Trouble | None]:
    """What the call returned, or how it failed. Even an exit of the program is a value."""
    try:
        return call(), None
    except Misuse as problem:
        return None, Trouble(phase=phase, message=str(problem), misuse=True)
    except BaseException as error:  # noqa: BLE001 - whatever the user's code does must end here
        return None, trouble(phase, error)


def trouble(phase: Phase, error: BaseException) -> Trouble:
    """An exception of the user's code, short and without credentials."""
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
    except Exception:  # noqa: BLE001 - an exception of the user's may fail to say what it is
        return "(it cannot be put into words)"
    return KEPT_BACK if is_withheld("", message) else message[:_LONGEST_MESSAGE]


def calling_line(frame: Any) -> str:
    """The user's line that led to this frame."""
    while frame is not None:
        if is_of_the_job(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


#: Equal on all ranks: DDP does not need equal seeds, but the comparisons do.
SEED = 20240229


@dataclass(frozen=True)
class Loaded:
    """What the factory returned: the model, what makes its batches, its loss, and DDP's options.

    ``optimizer`` makes one from parameters; ``step`` is a whole step of the job, as it clips and accumulates, and
    returns its loss; ``units`` are the modules to shard, or their classes; ``mesh`` is a DeviceMesh.
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
    """All generators that a model draws from: numpy's too, where numpy is imported already.

    ``torch.manual_seed`` formats a stack for each kind of device that is not in use, a quarter of a small model's pass.
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
    """Restore the generators for the checks that follow on this rank."""
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
    sys.argv = [module_name]  # a module that parses arguments finds none of the doctor's
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
    """Why a function does not take these arguments; empty where it does, or has no signature to tell."""
    try:
        return _problem(inspect.signature(function), (args, {}))
    except (TypeError, ValueError):  # the call itself shows it
        return ""


#: What a factory may return by name, in a dict or in an object …
_NAMES = ("model", "make_batch", "loss", "ddp")
#: … and in a dict alone: an object of the user's may have an attribute of that name that is something else.
_MORE = ("optimizer", "step", "units", "mesh")
_TO_RETURN = "a torch.nn.Module, (model, make_batch), or a dict or an object with model, make_batch, loss and ddp"


def made(name: str, factory: Callable[[], Any]) -> Loaded:
    """Call the factory and read what it returned. Raises Misuse, and whatever the factory raises."""
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
    """The module in what torch.compile made of it."""
    return getattr(model, "_orig_mod", model)


def _require_function(name: str, given: Any, form: str, arguments: int, example: str) -> None:
    """Raises Misuse where it is given, and no function of so many arguments."""
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
    """What the model takes, None where its signature does not tell, and the loss that the user gave."""

    forward: inspect.Signature | None = None
    loss: Callable[[Any, Any], Any] | None = None


def form_of(loaded: Loaded) -> Form:
    """How the model takes a batch."""
    bare = uncompiled(loaded.model)
    signature = None
    if not bare._forward_pre_hooks:  # noqa: SLF001 - a hook may make other arguments of them
        with suppress(TypeError, ValueError):  # of code that is no Python's
            signature = inspect.signature(bare.forward)
    return Form(signature, loaded.loss)


def is_several(given: Any) -> bool:
    """Whether a batch is a tuple or list of things, and no packed sequence or the like."""
    return isinstance(given, tuple | list) and not callable(getattr(given, "to", None))


def arguments(given: Any, form: Form) -> Arguments:
    """The arguments of forward. Raises Misuse where it does not take them, or takes the target for something else."""
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
    """Whether forward takes all but the last thing of a batch, too, and does not call that one a target itself."""
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
    """What to return instead of a batch whose last thing is a target."""
    what = "(inputs, target)" if len(given) == 2 else f"{len(given)} values with a target at the end"
    names = "" if form.forward is None else ", ".join(form.forward.parameters)
    return Misuse(
        f"make_batch returns {what}, but forward({names}) {raised}; return only the inputs, or {_WITH_A_LOSS}"
    )


def _choices(given: Any, form: Form) -> Iterator[Arguments]:
    """What the arguments may be, first what is most likely. The user's loss gets the whole batch in any case."""
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
    """Whether a value is surely not meant for an optional mask or switch, but is a target."""
    import torch

    if isinstance(parameter.default, bool | int | float | str):
        return isinstance(value, torch.Tensor) and value.dim() == 1
    if parameter.default is not None or "mask" not in parameter.name:
        return False
    if isinstance(value, torch.Tensor):
        if value.dtype is torch.bool or value.dim() < 2:
            return value.dtype is not torch.bool
        # It holds whole numbers that no mask does: other ones than 0 and 1.
        return not value.is_floating_point() and not value.is_meta and bool(((value < 0) | (value > 1)).any())
    return isinstance(value, int | str) or (isinstance(value, list) and any(isinstance(word, str) for word in value))
