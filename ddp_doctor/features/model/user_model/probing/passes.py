"""One forward and backward of a rank alone: its loss, the parameters with a gradient, the calls of submodules.

For equal work, gradients are then also compared between ranks: a hook on a single rank does not change its loss.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ddp_doctor.features.model.user_model import gradient_tolerance
from ddp_doctor.features.model.user_model.facts import BatchNorms, Call, Hook, Parting, Trouble
from ddp_doctor.features.model.user_model.names import MOST_NAMES
from ddp_doctor.features.model.user_model.probing.batches import Batch
from ddp_doctor.features.model.user_model.probing.user_code import SEED, attempt, calling_line, seed
from ddp_doctor.model.context import RankContext

#: Total number of gradient elements to keep and compare, and the minimum for one parameter.
_ELEMENTS_KEPT = 1 << 20
_LEAST_KEPT = 16
#: The model itself, in the list of calls.
WHOLE = "(the model)"
#: Maximum number of recorded calls of submodules.
_MOST_CALLS = 20_000


@dataclass
class Noted:
    """The records of a forward."""

    calls: list[tuple[str, str]] = field(default_factory=list)  # module, the user's line that called it
    norms: dict[str, int] = field(default_factory=dict)  # samples that a BatchNorm saw, by its name


@dataclass
class Pass:
    """The result of a forward and backward. ``gradients`` are samples, one tensor for each trainable parameter."""

    trouble: Trouble | None = None
    noted: Noted = field(default_factory=Noted)
    loss: float | None = None
    used: list[bool] = field(default_factory=list)
    not_finite: list[str] = field(default_factory=list)
    frozen: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of the trainable parameters, before the forward
    gradients: list[Any] = field(default_factory=list)


def trainable(model: Any) -> list[tuple[str, Any]]:
    """Return the parameters that DDP synchronizes, in its order."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def run(model: Any, batch: Batch, value: int = SEED) -> Pass:
    """Run forward and backward in training mode, starting without gradients; remove the gradients afterwards."""
    done = Pass()
    model.train()
    clear(model)
    seed(value)
    with as_wrapped(model) as named:
        with noting(model, done.noted):
            output, done.trouble = attempt("forward", lambda: batch.forward(model))
            loss = None
            if done.trouble is None:
                loss, done.trouble = attempt("loss", lambda: batch.loss(output))
            elif not done.trouble.out_of_memory:
                raised = " at ".join(filter(None, (done.trouble.type, done.trouble.where)))
                misuse = attempt("forward", lambda: batch.require_arguments(model, raised))[1]
                done.trouble = misuse or done.trouble
        done.frozen = [name for name, parameter in named if not parameter.requires_grad]
        if loss is not None:
            _, done.trouble = attempt("backward", loss.backward)
            done.loss = finite(loss)
        known = {id(parameter) for _, parameter in named}
        done.unknown = [
            name
            for name, parameter in model.named_parameters()
            if parameter.grad is not None and id(parameter) not in known
        ]
    if done.trouble is None:
        take_gradients(named, done)
    clear(model)
    return done


@contextmanager
def as_wrapped(model: Any) -> Iterator[list[tuple[str, Any]]]:
    """Keep ``requires_grad`` of all parameters as it is when DDP wraps the model, even if a forward sets it.

    DDP reads ``requires_grad`` once. It is restored, so every forward starts like the first one.
    """
    found = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield trainable(model)
    finally:
        for parameter, was in found:
            if parameter.requires_grad is not was:
                parameter.requires_grad_(was)


def take_gradients(named: Sequence[tuple[str, Any]], done: Pass) -> None:
    """Record which parameters got a gradient, and samples of the gradients."""
    kept = max(_ELEMENTS_KEPT // max(len(named), 1), _LEAST_KEPT)
    done.names = [name for name, _ in named]
    done.used = [parameter.grad is not None for _, parameter in named]
    done.not_finite = [name for name, parameter in named if not _is_finite(parameter.grad)]
    done.gradients = [sample(parameter.grad, parameter, kept) for _, parameter in named]


def clear(model: Any) -> None:
    """Remove all gradients, as ``zero_grad()`` does."""
    for parameter in model.parameters():
        parameter.grad = None


def finite(value: Any) -> float | None:
    """Return the loss as a number, or None if it is infinite or NaN."""
    number = float(value.detach())
    return number if number - number == 0.0 else None


def sample(tensor: Any, like: Any, kept: int) -> Any:
    """Return up to ``kept`` evenly spaced elements as float64 on the CPU; zeros without a tensor."""
    import torch

    if tensor is None:
        tensor = torch.zeros((), dtype=like.dtype, device=like.device).expand(like.shape)
    flat = tensor.detach()
    flat = (flat.coalesce().to_dense() if flat.is_sparse else flat).reshape(-1)
    if flat.numel() > kept:
        flat = flat[torch.arange(kept, device=flat.device) * (flat.numel() // kept)]
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.double().cpu()


def _is_finite(gradient: Any) -> bool:
    if gradient is None:
        return True
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    return bool(values.isfinite().all())


@contextmanager
def noting(model: Any, noted: Noted) -> Iterator[None]:
    """Record the calls of the model and its submodules in the block, and the samples of each BatchNorm."""
    import sys

    import torch

    names = {id(module): name or WHOLE for name, module in model.named_modules()}
    kinds = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - their common base class

    def before(module: Any, given: Sequence[Any]) -> None:
        name = names.get(id(module))
        if name is None:
            return
        if len(noted.calls) < _MOST_CALLS:
            noted.calls.append((name, calling_line(sys._getframe(1))))  # noqa: SLF001 - the line is the evidence
        is_own = isinstance(module, kinds) and not isinstance(module, torch.nn.SyncBatchNorm)
        if is_own and module.training and given:
            noted.norms[name] = min(noted.norms.get(name, given[0].shape[0]), given[0].shape[0])

    handle = torch.nn.modules.module.register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()


def batch_norms(noted: Noted) -> BatchNorms | None:
    """Return the count of BatchNorm layers, and the one with the smallest batch."""
    if not noted.norms:
        return None
    first = min(noted.norms, key=lambda name: noted.norms[name])
    return BatchNorms(count=len(noted.norms), first=first, samples=noted.norms[first])


def parting(own: int, texts: Sequence[str], ranks: Sequence[int]) -> Parting | None:
    """Return the first call that differs from most ranks' or, without a majority, from the first rank's."""
    own_text = texts[own]
    majority = next((text for text in texts if 2 * texts.count(text) > len(texts)), texts[0])
    if own_text == majority:
        return None
    here, there = ([tuple(call) for call in json.loads(text)] for text in (own_text, majority))
    index = next(
        (at for at, (own_call, peer_call) in enumerate(zip(here, there, strict=False)) if own_call != peer_call),
        min(len(here), len(there)),
    )
    peer = ranks[texts.index(majority)]
    return Parting(index=index, peer=peer, here=_call(here, index), there=_call(there, index))


def _call(calls: Sequence[tuple[str, ...]], index: int) -> Call | None:
    return Call(module=calls[index][0], where=calls[index][1]) if index < len(calls) else None


def compare(ctx: RankContext, model: Any, done: Pass) -> tuple[int, list[str], tuple[Hook, ...]]:
    """Return the reference rank, the parameters whose gradient differs from its, and hooks on all such parameters.

    The reference is the first rank, or, if most ranks differ from it, the first of these. Hooks are listed for
    parameters that differ on any rank. All ranks must call it, after successful passes with equal parameters, buffers,
    batch and seeds.
    """
    peer, names = 0, _parameters_apart(ctx, model, done, 0)
    off = _exchanged(ctx, "apart from the first rank", names)
    if 2 * sum(1 for names_of_rank in off if names_of_rank) > ctx.world_size:
        peer = next(place for place, names_of_rank in enumerate(off) if names_of_rank)
        names = _parameters_apart(ctx, model, done, peer)
        off = _exchanged(ctx, "apart from another rank", names)
    concerned = {name for names_of_rank in off for name in names_of_rank}
    hooks = [
        Hook(parameter=name, where=_first_line(hook))
        for name, parameter in trainable(model)
        if name in concerned
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")
        for hook in (getattr(parameter, kind, None) or {}).values()
    ]
    return ctx.ranks[peer], names, tuple(hooks)


def _exchanged(ctx: RankContext, name: str, names: list[str]) -> list[list[str]]:
    with ctx.step("compare_gradients", name):
        return [json.loads(text) for text in ctx.exchange(name, json.dumps(names[:MOST_NAMES]))]


def _parameters_apart(ctx: RankContext, model: Any, done: Pass, peer: int) -> list[str]:
    """Return the parameters whose gradient differs from the peer's; ``peer`` is a group rank."""
    import torch
    import torch.distributed as dist

    everything = torch.cat(done.gradients)
    with ctx.step("broadcast", f"gradients of rank {ctx.ranks[peer]}, {len(everything)} elements"):
        shared = everything.to(ctx.device)
        dist.broadcast(shared, dist.get_global_rank(ctx.group, peer), group=ctx.group)
    theirs = torch.split(shared.cpu(), [len(gradient) for gradient in done.gradients])
    pairs = list(zip(done.gradients, theirs, strict=True))
    least = 0.0  # the difference that other hardware explains, unless half of the gradients are bitwise equal
    if 2 * sum(1 for own, peers in pairs if bool((own == peers).all())) < len(pairs):
        least = gradient_tolerance.ROUNDING_ALONE * max(_largest(*pair) for pair in pairs)
    apart = []
    for (name, _), (own, peers) in zip(trainable(model), pairs, strict=True):
        allowed = max(gradient_tolerance.ON_ANOTHER_RANK * _largest(own, peers), least)
        if len(own) and float((own - peers).abs().max()) > allowed:
            apart.append(name)
    return apart


def _largest(own: Any, peer: Any) -> float:
    return max((float(gradient.abs().max()) for gradient in (own, peer) if len(gradient)), default=0.0)


def _first_line(hook: Any) -> str:
    """Return the line where a hook's function begins: the inner one of a partial, ``__call__`` of an object."""
    hook = getattr(hook, "func", hook)
    code = getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
