"""The user's own code: from ``--model package.module:factory`` to a model and its batches, on a rank.

What that code raises is a value, with the innermost line of that code.
"""

import importlib
import inspect
import random
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ddp_doctor.facts.ddp.user_model import Phase, Trouble
from ddp_doctor.parse.redact import KEPT_BACK, is_withheld

T = TypeVar("T")
_LONGEST_MESSAGE = 300
#: Frames of these are not the user's code: torch, the standard library, this check.
_NOT_THE_USERS = (
    "/torch/",
    "<frozen",
    "/checks/ddp/user_model/",
    "/probing/user_model/",
    sysconfig.get_path("stdlib") + "/",
)
_SITE = ("/site-packages/", "/dist-packages/")


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
    return Trouble(
        phase=phase,
        type=type(error).__name__,
        message=_message(error),
        where=_where(error),
        out_of_memory="OutOfMemoryError" in type(error).__name__,
    )


def _message(error: BaseException) -> str:
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an exception of the user's may fail to say what it is
        return "(it cannot be put into words)"
    return KEPT_BACK if is_withheld("", message) else message[:_LONGEST_MESSAGE]


def _where(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_the_users(frame.filename)]
    near = [frame for frame in own if not any(site in frame.filename for site in _SITE)]
    shown = (near or own)[-1:]
    return f"{shown[0].filename}:{shown[0].lineno}" if shown else ""


def is_the_users(filename: str) -> bool:
    """Whether a line of this file is the user's or a library's of theirs."""
    if any(site in filename for site in _SITE):
        return "/torch/" not in filename
    return not any(part in filename for part in _NOT_THE_USERS)


def calling_line(frame: Any) -> str:
    """The user's line that led to this frame."""
    while frame is not None:
        if is_the_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


#: Equal on all ranks: DDP does not need equal seeds, but the comparisons do.
SEED = 20240229


@dataclass(frozen=True)
class Loaded:
    """What the factory returned: the model, the function that makes its batches, and DDP's options."""

    model: Any
    make_batch: Callable[[int], Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def seed(value: int = SEED) -> None:
    """All generators that a model draws from: numpy's too, where numpy is imported already."""
    import torch

    random.seed(value)
    torch.manual_seed(value)
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
            raise Misuse(f"there is no module {error.name!r} in {here} or on the Python path") from None
        raise
    for part in path.split("."):
        if not hasattr(found, part):
            raise Misuse(f"{module_name} has no {path!r}")
        found = getattr(found, part)
    return _callable(name, found)


def _callable(name: str, found: Any) -> Callable[[], Any]:
    import torch

    if isinstance(found, torch.nn.Module):
        raise Misuse(f"{name} is a model itself; name a callable that makes one")
    if not callable(found):
        raise Misuse(f"{name} is a {type(found).__name__}, not a callable that makes a model")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise Misuse(f"{name} is called without arguments, but is {error}") from None
    except ValueError:
        pass  # a callable without a signature: the call itself shows it
    factory: Callable[[], Any] = found
    return factory


def made(name: str, factory: Callable[[], Any]) -> Loaded:
    """Call the factory and read what it returned. Raises Misuse, and whatever the factory raises."""
    seed()
    returned = factory()
    parts = returned if isinstance(returned, tuple) else (returned,)
    _require(name, parts)
    loaded = Loaded(*parts)
    return Loaded(loaded.model, loaded.make_batch, dict(loaded.options or {}))


def _require(name: str, parts: tuple[Any, ...]) -> None:
    """Raises Misuse with what is wrong in what the factory returned."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = parts[0] if parts else None
    if isinstance(model, DistributedDataParallel | torch.nn.DataParallel):
        raise Misuse(f"{name} returns a model in {type(model).__name__}; return it bare, the doctor wraps it")
    if not isinstance(model, torch.nn.Module) or len(parts) > 3:
        kind = f"a tuple of {len(parts)}" if len(parts) != 1 else f"a {type(model).__name__}"
        raise Misuse(f"{name} returns {kind}; it has to return a torch.nn.Module, or (model, make_batch)")
    if len(parts) > 1 and parts[1] is not None and not callable(parts[1]):
        raise Misuse(
            f"{name} returns a {type(parts[1]).__name__} beside the model; it has to be make_batch(step)"
        )
    if len(parts) > 2:
        _require_options(name, parts[2])


def _require_options(name: str, options: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(options, Mapping):
        raise Misuse(f"{name} returns a {type(options).__name__} as DDP's options; it has to be a dict")
    taken = {"module", "device_ids", "output_device", "process_group", "self"}
    known = set(inspect.signature(DistributedDataParallel.__init__).parameters) - taken
    unknown = [str(option) for option in options if option not in known]
    if unknown:
        raise Misuse(f"{name} returns {unknown[0]!r} as an option of DDP, which has or leaves none such")
