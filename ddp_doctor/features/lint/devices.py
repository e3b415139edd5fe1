"""GPUs in a script: which GPU is used, and how it is chosen.

torch.device("cuda:0"), "cuda:0", 0          one GPU for every rank
"cuda", .cuda()                              the GPU of torch.cuda.set_device, else GPU 0
f"cuda:{local_rank}", torch.device(rank)     chosen by a rank
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from ddp_doctor.features.lint import names
from ddp_doctor.features.lint.ranks import rank_kind
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import NOTHING, SAME_OBJECT, Call, Value

_MOVES = ("to", "cuda")
_INDEXED = re.compile(r"cuda:(\d+)")
_NCCL = re.compile(r"(^|:)nccl2?($|,)")
_DEVICE_COUNTS = ("torch.cuda.device_count", "torch.accelerator.device_count")
#: Maximum number of wrapped models per script.
_MOST_KEPT = 50


def moves_to_device(call: Call) -> bool:
    """Return True if ``.cuda()`` or ``.to()`` moves to a GPU or an unknown device, not only to another type."""
    if call.method not in _MOVES:
        return False
    target = target_of(call)
    if not target:
        return call.method == "cuda"
    if target.reference.startswith("torch.") and target.reference != "torch.device":
        return False  # torch.bfloat16 and similar
    return device_text(target) != "cpu"


def target_of(move: Call) -> Value:
    """Return the device of a move, as the script writes it."""
    return move.argument(0, "device")


def goes_to_gpu(move: Call) -> bool:
    """Return True if a move certainly goes to a GPU: by its name, or by a rank's number."""
    target = target_of(move)
    if not target or (device_text(target) or "").startswith("cuda"):
        return True
    options = list(target.alternatives())
    index = index_in(target) if len(options) == 1 else NOTHING
    is_named = isinstance(options[0].node, ast.JoinedStr) and not options[0].text.startswith(("f'cuda:", 'f"cuda:'))
    return not is_named and rank_kind(index) is not None


def device_text(value: Value) -> str | None:
    """Return ``cuda:0``, ``cuda`` or ``cpu`` if a value is certainly that; None if it is chosen at run time.

    If there are several alternatives, the CPU does not count: ``"cuda:0" if torch.cuda.is_available() else "cpu"``.
    """
    texts = {_text(option) for option in value.alternatives()}
    if len(texts) > 1:
        texts.discard("cpu")
    return texts.pop() if len(texts) == 1 else None


def _text(value: Value) -> str | None:
    if isinstance(value, Call):
        if value.name != "torch.device" or not value.args:
            return None
        first, index = device_text(value.args[0]), value.argument(1, "index")
        if not index or first != "cuda":
            return None if index else first
        return f"cuda:{index.constant}" if isinstance(index.constant, int) else None
    if isinstance(value.node, ast.JoinedStr) and value.kind == "other":  # f"cuda:{GPU}"
        holes = (part.parts[0] if isinstance(part.node, ast.FormattedValue) else part for part in value.parts)
        constants = [hole.constant for hole in holes]
        return "".join(map(str, constants)) if all(isinstance(constant, str | int) for constant in constants) else None
    constant = value.constant
    if isinstance(constant, int) and not isinstance(constant, bool):
        return f"cuda:{constant}"
    return constant if isinstance(constant, str) else None


def fixed_gpu(value: Value) -> str | None:
    """Return ``cuda:0`` if a value names one GPU by a number in the script."""
    text = device_text(value)
    return text if text is not None and _INDEXED.fullmatch(text) else None


def index_in(value: Value) -> Value:
    """Return the value that chooses the GPU: ``rank`` in ``f"cuda:{rank}"`` and ``torch.device("cuda", rank)``."""
    for option in value.alternatives():
        if isinstance(option, Call) and option.name == "torch.device":
            return option.argument(1, "index") or (index_in(option.args[0]) if option.args else NOTHING)
        if isinstance(option.node, ast.JoinedStr) and option.kind == "other":
            holes = [part for part in option.parts if isinstance(part.node, ast.FormattedValue)]
            return holes[0].parts[0] if len(holes) == 1 else NOTHING
        if isinstance(option.node, ast.BinOp) and option.parts and isinstance(prefix := option.parts[0].constant, str):
            return option.parts[1] if prefix == "cuda:" else NOTHING  # "cuda:" + str(rank)
    return value


def device_ids(wrap: Call) -> tuple[Value, ...]:
    """Return the devices in ``device_ids=[...]``; empty if it is written differently."""
    lists = (option.parts for option in wrap.argument(1, "device_ids").alternatives() if option.kind == "tuple")
    return next(lists, ())


def moves_of(value: Value) -> Iterator[Call]:
    """Yield the moves to a device between a module and this value, the last first: ``.cuda()`` in
    ``Net().cuda().train()``."""
    waiting = [value]
    for _ in range(50):
        if not waiting:
            return
        current = waiting.pop(0)
        if current.kind == "choice":
            waiting[:0] = current.alternatives()
        elif isinstance(current, Call):
            if moves_to_device(current):
                yield current
            if current.returned:
                waiting.append(current.returned)
            elif current.method in SAME_OBJECT:
                waiting.append(current.receiver)
            elif current.name in (names.CONVERT_SYNC_BN, "torch.compile", names.DDP) and current.args:
                waiting.append(current.args[0])


@lru_cache(maxsize=_MOST_KEPT)  # several rules ask
def moves_before(script: Script, wrap: Call) -> tuple[Call, ...]:
    """Return the moves of the model before it is wrapped, in the same expression or in earlier statements."""
    return tuple(moved(script, wrap.argument(0, "module"), wrap))


def moved(script: Script, value: Value, before: Call | None = None) -> Iterator[Call]:
    """Yield the moves of a module inside this value, and moves in other statements that precede ``before``."""
    found = list(moves_of(value))
    yield from found
    objects = {id(option) for option in value.objects()}
    for call in _moves(script):
        if call in found or not (before is None or call.precedes(before)):
            continue
        if any(id(option) in objects for option in call.receiver.objects()):
            yield call


@lru_cache(maxsize=1)
def _moves(script: Script) -> tuple[Call, ...]:
    return tuple(call for call in script.methods(*_MOVES) if moves_to_device(call))


def is_device_count(value: Value) -> bool:
    """Return True if a value is the number of GPUs that a process sees."""
    options = list(value.alternatives())
    return bool(options) and all(isinstance(option, Call) and option.name in _DEVICE_COUNTS for option in options)


def starts_nccl(script: Script, group: Call) -> bool:
    """Return True if a process group certainly uses NCCL for its GPUs, which is also the default.

    False if the script requests the class of torch 2.13, which takes its GPU from the first collective.
    """
    backend = group.argument(0, "backend")
    if script.uses("TORCH_DIST_USE_NCCL2") or group.has_stars:
        return False
    return not backend or any(
        _NCCL.search(str(option.constant)) or option.name.endswith("Backend.NCCL") for option in backend.alternatives()
    )


def is_over_gloo(script: Script) -> bool:
    """Return True if all groups use gloo, by name or by the default of a command-line option."""
    backends = [group.argument(0, "backend") for group in script.named(names.INIT)]
    return bool(backends) and all(
        backend and all(_is_gloo(script, option) for option in backend.alternatives()) for backend in backends
    )


def _is_gloo(script: Script, backend: Value) -> bool:
    if backend.kind == "attribute":  # args.dist_backend
        flag = backend.attribute.replace("_", "-")
        for call in script.methods("add_argument"):
            given = (call.argument(None, "dest"), *call.args)
            if any(str(each.constant).lstrip("-").replace("_", "-") == flag for each in given):
                backend = call.argument(None, "default")
    return str(backend.constant).lower() == "gloo" or backend.name.endswith("Backend.GLOO")


def chooses_visible_gpus(script: Script) -> bool:
    """Return True if each process gets its own GPU by CUDA_VISIBLE_DEVICES, so that GPU 0 is right for all.

    Ray sets it for each worker that asks for a GPU.
    """
    return script.uses("CUDA_VISIBLE_DEVICES") or any(module.split(".")[0] == "ray" for module in script.modules)


def has_one_rank(script: Script) -> bool:
    """Return True if the script fixes one rank in total or per node, so that GPU 0 is right."""
    sizes = [group.argument(3, "world_size") for group in script.named(names.INIT)]
    started = [spawn.argument(2, "nprocs") for spawn in script.named(names.SPAWN)]
    return any(bool(given) and all(number.constant == 1 for number in given) for given in (sizes, started))
