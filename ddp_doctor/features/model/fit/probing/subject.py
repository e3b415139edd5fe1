"""The model to estimate: the user's or one of transformers, on fake tensors, with a batch and its units.

The factory runs on fake tensors, so weights take no memory. Code that needs values (``torch.linspace(...).item()``)
runs again on real tensors, within a limit. The factory cannot reach other machines: random weights have the same size.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ddp_doctor.features.model.fit.probing import fake
from ddp_doctor.features.model.fit.probing.strategies import innermost_first, trainable
from ddp_doctor.features.model.user_model.facts import Phase, Trouble
from ddp_doctor.features.model.user_model.probing import user_code
from ddp_doctor.features.model.user_model.probing.batches import Batch
from ddp_doctor.features.model.user_model.probing.sharding import is_dtensor
from ddp_doctor.features.model.user_model.probing.user_code import Loaded, Misuse, find, made, uncompiled
from ddp_doctor.model.error_text import quoted, unknown
from ddp_doctor.parse.json_value import NotJson, json_object, json_value
from ddp_doctor.parse.options import CONFIGURATION, is_configuration

#: Maximum memory of a process whose factory needs real tensors (judgment).
MOST_BYTES = 16 << 30
#: The defaults of --batch and --seq for a transformers model with enough positions.
BATCH, SEQUENCE = 1, 2048


class Stopped(Exception):
    """The user's code failed, with the details."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.phase)
        self.trouble = trouble


@dataclass
class Subject:
    """A model on fake tensors, and the inputs of a step."""

    loaded: Loaded
    mode: Any
    given: Any = None  # what make_batch returned
    samples: int = 0

    @property
    def model(self) -> Any:
        """The model, without the wrapper of torch.compile."""
        return uncompiled(self.loaded.model)

    def batch(self, more: int = 0, *, cast: bool = False) -> Batch:
        """Return the batch with this many additional samples, with numbers ``cast`` to bfloat16. Raises Misuse."""
        import torch

        form = user_code.form_of(self.loaded)

        def changed(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            shape = list(leaf.shape)
            if shape and shape[0] == self.samples:
                shape[0] += more
            return torch.zeros(shape, dtype=torch.bfloat16 if cast and leaf.is_floating_point() else leaf.dtype)

        with self.mode:
            return Batch(self.given, form).changed(changed)


def of(name: str, batch: int | None = None, sequence: int | None = None) -> Subject:
    """Return the model of ``module:factory`` or ``hf:NAME``. Raises Misuse and Stopped."""
    factory = _attempt("import", lambda: factory_of(name, batch, sequence))
    mode = fake.mode()
    with _alone(name), _bounded(name):
        with mode, fake.conversions():
            loaded, trouble = user_code.attempt("factory", factory)
        if trouble is not None and trouble.misuse:
            raise Misuse(trouble.message)
        loaded = loaded or _attempt("factory", factory)
        _require_whole(name, loaded.model)
        fake.faked(uncompiled(loaded.model), mode)
        given = None
        if (make_batch := loaded.make_batch) is not None:
            given, trouble = user_code.attempt("make_batch", lambda: make_batch(0))
            if trouble is not None:  # it may need a GPU that is not present
                with mode:
                    given = _attempt("make_batch", lambda: make_batch(0))
    sizes = [tensor.shape[0] for _, tensor in Batch(given).tensors() if tensor.dim()]
    if 0 in sizes:
        raise Misuse(f"make_batch of {name} returns an empty batch; return at least one sample")
    return Subject(loaded, mode, given, int(sizes[0]) if sizes else 0)


def _require_whole(name: str, model: Any) -> None:
    from torch.nn.parameter import is_lazy

    for module in model.modules():
        if any(map(is_lazy, module.parameters(False))):
            raise Misuse(
                f"{type(module).__name__} has no size yet; call the model once with a batch before {name} returns it"
            )
    if any(map(is_dtensor, model.parameters())):
        raise Misuse(f"{name} returns a sharded model; return it unsharded, because each strategy shards it")
    if not trainable(model.parameters()):
        raise Misuse(f"{name} returns a model without trainable parameters")


def factory_of(name: str, batch: int | None, sequence: int | None) -> Callable[[], Loaded]:
    """Return a function that makes the model and its batch. Raises Misuse, and whatever the import raises."""
    if not is_configuration(name):
        return partial(made, name, find(name))
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise Misuse(f"{name} requires transformers, which is not installed; run: pip install transformers") from None
    config = _config(name.removeprefix(CONFIGURATION))
    config.use_cache = False

    def factory() -> Loaded:
        return Loaded(AutoModelForCausalLM.from_config(config).train(), make_batch)

    most = _positions(config)
    if sequence and most and sequence > most:
        raise Misuse(f"--seq {sequence} exceeds the {most:,} positions of {name}; give --seq {most} or less")
    tokens = sequence or min(SEQUENCE, most or SEQUENCE)

    def make_batch(_: int) -> dict[str, Any]:
        import torch

        ids = torch.zeros((batch or BATCH, tokens), dtype=torch.int64)
        return {"input_ids": ids, "labels": ids}

    return factory


#: Names of the maximum number of tokens in configurations; transformers maps most of them to the first.
_MOST_POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
)


def _positions(config: Any) -> int | None:
    """Return the maximum number of tokens of the configuration, or None if unknown."""
    found = (getattr(config.get_text_config(), name, None) for name in _MOST_POSITIONS)
    return next((number for number in found if isinstance(number, int) and number > 0), None)


def tokens_of(given: Any) -> int | None:
    """Return the tokens per sample of a batch for ``hf:NAME``."""
    ids = given.get("input_ids") if isinstance(given, dict) else None
    return int(ids.shape[1]) if ids is not None and ids.dim() == 2 else None


def _config(spec: str) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig

    name, *settings = spec.split(",")
    if name.endswith(".json"):
        try:
            values: Any = json_object(Path(name).read_bytes())
        except (OSError, NotJson) as error:
            raise Misuse(f"cannot read the configuration {quoted(name)}: {getattr(error, 'strerror', error)}") from None
        name = values.pop("model_type", "")
    else:
        values = {}
    if name not in CONFIG_MAPPING:
        raise Misuse(
            unknown("transformers model", name, CONFIG_MAPPING, "use the model_type in the model's config.json")
        )
    known = AutoConfig.for_model(name).to_dict()
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise Misuse(
                f"invalid {name} setting {quoted(setting)}: expected KEY=VALUE, for example num_hidden_layers=16"
            )
        if key not in known:
            raise Misuse(unknown(f"{name} setting", key, known, "use a key of the model's config.json"))
        values[key] = value
        with suppress(NotJson):  # a plain word is a string without quotes
            values[key] = json_value(value)
    try:
        return AutoConfig.for_model(name, **values)
    except Exception as error:  # noqa: BLE001 - each configuration checks its values differently
        raise Misuse(f"transformers rejects the configuration {quoted(spec)}: {' '.join(f'{error}'.split())}") from None


def units_of(model: Any, given: Sequence[Any]) -> list[Any]:
    """Return the modules to shard, in the model's order. Raises Misuse.

    ``given`` are modules or classes. By default, it is the list of modules of one class with the most parameters.
    """
    import torch

    def elements(item: Any) -> int:
        return sum(parameter.numel() for parameter in item.parameters())

    modules = list(model.modules())
    if not given:
        lists = [
            list(module)
            for module in modules
            if isinstance(module, torch.nn.ModuleList | torch.nn.Sequential)
            and len(module) > 1
            and len({type(item) for item in module}) == 1
        ]
        wanted = max(lists, key=lambda items: sum(map(elements, items)), default=[])
        given = [item for item in wanted if elements(item)]
    classes = tuple(item for item in given if isinstance(item, type))
    named = {id(item) for item in given}
    found = [module for module in modules if id(module) in named or isinstance(module, classes)]
    if given and not found:
        raise Misuse(
            "the model contains none of the units to shard; return modules of the model, or their classes, as units"
        )
    return [module for module in found if module is not model]


def own_parameters(model: Any, units: Sequence[Any]) -> list[list[Any]]:
    """Return the parameters of each unit that are in no inner unit, and last the parameters of no unit."""
    seen: set[int] = set()
    own: dict[int, list[Any]] = {}
    for module in (*innermost_first(model, units), model):
        own[id(module)] = [parameter for parameter in module.parameters() if id(parameter) not in seen]
        seen.update(map(id, own[id(module)]))
    return [own[id(module)] for module in (*units, model)]


def largest(model: Any) -> tuple[str, int]:
    """Return the name of the module with the most bytes of direct parameters, and these bytes."""
    sizes = {
        name or "the model": sum(parameter.numel() * parameter.element_size() for parameter in module.parameters(False))
        for name, module in model.named_modules()
    }
    return max(sizes.items(), key=lambda size: size[1])


def _attempt(phase: Phase, call: Callable[[], Any]) -> Any:
    value, trouble = user_code.attempt(phase, call)
    if trouble is None:
        return value
    if trouble.misuse:
        raise Misuse(trouble.message)
    raise Stopped(trouble)


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Block connections to other machines. Raises Misuse if the user's code failed after a blocked one."""
    tried: list[str] = []
    is_over = False  # audit hooks cannot be removed

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if is_over or event not in ("socket.connect", "socket.getaddrinfo"):
            return
        target = args[1] if event == "socket.connect" else args
        host = target[0] if isinstance(target, tuple) else None  # a socket file has no host
        if host and str(host) not in ("localhost", "127.0.0.1", "::1"):
            tried.append(f"{host}")
            raise ConnectionRefusedError(f"`ddp-doctor fit` does not allow the model factory to connect to {host}")

    sys.addaudithook(hook)
    try:
        yield
    except (Misuse, Stopped):
        if tried:
            raise Misuse(
                f"{name} tries to connect to {tried[0]}; an estimate needs no weights, so create the model from its"
                " configuration without a download"
            ) from None
        raise
    finally:
        is_over = True


@contextmanager
def _bounded(name: str) -> Iterator[None]:
    """Limit real memory to MOST_BYTES. Raises Misuse if the user's code failed for lack of it."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = MOST_BYTES if before[1] == resource.RLIM_INFINITY else min(MOST_BYTES, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    except Stopped as stopped:
        trouble = stopped.trouble
        refused = ("allocate memory", "Unable to allocate")
        if trouble.type == "MemoryError" or any(words in trouble.message for words in refused):
            raise Misuse(
                f"{name} allocates more than {MOST_BYTES >> 30} GiB of real memory at {trouble.where}; create the"
                " weights"
                " with torch, because torch allocates no memory for weights during an estimate"
            ) from None
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
