"""Gradients of equal work, rank against rank: a hook that one rank alone has leaves its loss as it is."""

import json
from collections.abc import Iterator
from typing import Any

from ddp_doctor.facts.ddp.user_model import MOST_NAMES, Hook
from ddp_doctor.knowledge.ddp import gradient_tolerance
from ddp_doctor.model.context import RankContext
from ddp_doctor.probing.user_model.passes import Pass, trainable


def compare(ctx: RankContext, model: Any, done: Pass) -> tuple[int, list[str], tuple[Hook, ...]]:
    """The rank that was compared with, the parameters that are apart from its, and hooks on all that are apart.

    That is the first rank, or, where most ranks are apart from it, the first of those. Called with equal
    parameters, buffers, batch and seeds on all ranks, of which none failed.
    """
    peer, names = 0, _apart(ctx, model, done, 0)
    off = _exchanged(ctx, "apart from the first rank", names)
    if 2 * sum(1 for names_of_rank in off if names_of_rank) > ctx.world_size:
        peer = next(place for place, names_of_rank in enumerate(off) if names_of_rank)
        names = _apart(ctx, model, done, peer)
        off = _exchanged(ctx, "apart from another rank", names)
    concerned = {name for names_of_rank in off for name in names_of_rank}
    return ctx.ranks[peer], names, tuple(_hooks(model, concerned))


def _exchanged(ctx: RankContext, name: str, names: list[str]) -> list[list[str]]:
    with ctx.step("compare_gradients", name):
        return [json.loads(text) for text in ctx.exchange(name, json.dumps(names[:MOST_NAMES]))]


def _apart(ctx: RankContext, model: Any, done: Pass, peer: int) -> list[str]:
    """Parameters whose gradient differs from the peer's, by the peer's place in the group."""
    import torch
    import torch.distributed as dist

    own = torch.cat(done.gradients)
    with ctx.step("broadcast", f"gradients of rank {ctx.ranks[peer]}, {len(own)} elements"):
        shared = own.to(ctx.device)
        dist.broadcast(shared, dist.get_global_rank(ctx.group, peer), group=ctx.group)
    theirs = torch.split(shared.cpu(), [len(gradient) for gradient in done.gradients])
    pairs = list(zip(done.gradients, theirs, strict=True))
    least = _least(pairs)
    return [
        name
        for (name, _), (own, shared) in zip(trainable(model), pairs, strict=True)
        if len(own) and _differ(own, shared, least)
    ]


def _least(pairs: list[tuple[Any, Any]]) -> float:
    """The difference that other hardware explains; none where half of the gradients are equal bit for bit."""
    if 2 * sum(1 for own, shared in pairs if bool((own == shared).all())) >= len(pairs):
        return 0.0
    return gradient_tolerance.ROUNDING_ALONE * max(_largest(*pair) for pair in pairs)


def _differ(own: Any, peer: Any, least: float) -> bool:
    error = float((own - peer).abs().max())
    return error > max(gradient_tolerance.ON_ANOTHER_RANK * _largest(own, peer), least)


def _largest(own: Any, peer: Any) -> float:
    return max((float(gradient.abs().max()) for gradient in (own, peer) if len(gradient)), default=0.0)


def _hooks(model: Any, names: set[str]) -> Iterator[Hook]:
    """The hooks of ``register_hook`` and ``register_post_accumulate_grad_hook``."""
    for name, parameter in trainable(model):
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks") if name in names else ():
            hooks = getattr(parameter, kind, None) or {}
            yield from (Hook(parameter=name, where=_line(hook)) for hook in hooks.values())


def _line(hook: Any) -> str:
    """Where a hook's function begins: of a partial the inner one's, of an object its ``__call__``'s."""
    hook = getattr(hook, "func", hook)
    code = getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
