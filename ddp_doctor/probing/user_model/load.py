"""From ``--model package.module:factory`` to a model and its batches, on a rank."""

import importlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddp_doctor.probing.user_model.user_code import Misuse

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
        pass  # a callable without a signature: the call itself tells
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
