"""Rules on models that FSDP shards: FSDP2 (`fully_shard`) and FSDP1 (FullyShardedDataParallel) need different calls.

optimizer = AdamW(model.parameters()); fully_shard(model)      the optimizer has parameters that the model has no more
with model.no_sync():                                          FSDP2's modules have no such method
torch.nn.utils.clip_grad_norm_(fsdp1.parameters(), 1.0)        the norm of this rank's shards alone
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddp_doctor.features.lint import names, training
from ddp_doctor.features.lint.rule import Spot, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Value, is_result
from ddp_doctor.model.choices import Consequence

_OPTIMIZER = re.compile(r"torch\.optim\.(?!(?:lr_scheduler|swa_utils)\.)(\w+\.)?[A-Z]\w*")
_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_norm")
_SHARDS = re.compile(r"\b(FULL_SHARD|SHARD_GRAD_OP|HYBRID_SHARD|_HYBRID_SHARD_ZERO2)$")
_ASKS = re.compile(r"hasattr|isinstance|no_sync")


@lint_rule("DDL171", "optimizer-before-fully-shard", Consequence.WRONG)
def optimizer_before_fully_shard(script: Script) -> Iterator[Spot]:
    """The optimizer is created before FSDP shards the model's parameters.

    Finds: An optimizer of `torch.optim` over `model.parameters()`, if `fully_shard` or FullyShardedDataParallel is
        called later for that model or its layers and the optimizer is not created again. Not reported if
        FullyShardedDataParallel gets `use_orig_params`.
    Why: fully_shard replaces every parameter with a DTensor that holds this rank's share, and FullyShardedDataParallel
        moves all parameters of a unit into one. The optimizer keeps the old parameters, which no longer get gradients.
        Its steps change nothing and raise no error.
    Remedy: Create the optimizer after the model was sharded.
    See: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
        https://docs.pytorch.org/docs/stable/fsdp.html
    """
    shards = [shard for shard in script.named(*names.FSDP) if shard.lacks(None, "use_orig_params")]
    optimizers = [call for call in script.calls if shards and _OPTIMIZER.fullmatch(call.name)]
    for optimizer in optimizers:
        for model in _trained(optimizer):
            later = [shard for shard in shards if optimizer.precedes(shard) and _is_of(shard, model)]
            again = any(
                shard.precedes(other) and any(each in (model, shard) for each in _trained(other))
                for shard in later
                for other in optimizers
            )
            if later and not again and not training.exclude_each_other(optimizer, later[0]):
                yield Spot(
                    optimizer,
                    f"{later[0].name.rpartition('.')[2]} in line {later[0].node.lineno} replaces the parameters of this"
                    " optimizer",
                    remedy="Create the optimizer after the model is sharded",
                )


def _trained(optimizer: Call) -> list[Value]:
    """Return the models whose parameters an optimizer gets."""
    given = optimizer.argument(0, "params")
    takes = [part for part in given.calls() if part.method in ("parameters", "named_parameters")]
    return [models[0] for call in takes if len(models := _owners(call)) == 1]


def _owners(call: Call) -> list[Value]:
    """Return all objects that may own the method."""
    return list(call.parts[0].objects())


def _is_of(shard: Call, model: Value) -> bool:
    return list(training.whole(shard.argument(0, "module")).objects()) == [model]


@lint_rule("DDL172", "no-sync-of-fsdp2", Consequence.FAILS)
def no_sync_of_fsdp2(script: Script) -> Iterator[Spot]:
    """no_sync() is called on a model of fully_shard, which does not have this method.

    Finds: `model.no_sync()` if `fully_shard(model)` ran before it on every path. Not reported if the script checks the
        type or attributes of the model (`isinstance`, `hasattr`).
    Why: `no_sync` is a method of DistributedDataParallel and FullyShardedDataParallel. fully_shard adds other methods
        to the module, so the call raises AttributeError.
    Remedy: Call `model.set_requires_gradient_sync(last)` before the forward of each pass.
    See: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    for call in script.methods("no_sync"):
        if any(_ASKS.search(condition.test.text) for condition in call.conditions):
            continue
        before = [
            shard for shard in script.named(names.FSDP[1]) if shard.precedes(call) and not training.beyond(shard, call)
        ]
        models = _owners(call)
        if models and all(
            any(model is shard or list(shard.argument(0, "module").objects()) == [model] for shard in before)
            for model in models
        ):
            yield Spot(
                call,
                "A fully_shard model has no no_sync(): this raises AttributeError",
                remedy="Call set_requires_gradient_sync before the forward, with False except for the last pass",
                write=("model.set_requires_gradient_sync(is_last)",),
            )


@lint_rule("DDL173", "shards-clipped-apart", Consequence.WRONG)
def shards_clipped_apart(script: Script) -> Iterator[Spot]:
    """torch.nn.utils clips gradients of FullyShardedDataParallel with the norm of this rank's shards only.

    Finds: `torch.nn.utils.clip_grad_norm_` on the parameters of a model that FullyShardedDataParallel certainly wraps,
        with a strategy that shards. Not reported for `fully_shard`: its gradients are DTensors, whose norm covers all
        ranks.
    Why: Each rank has a part of the gradients, so each computes a different norm and scales its part by a different
        factor. The direction of the step is wrong, without an error.
    Remedy: Call `model.clip_grad_norm_(max_norm)` on all ranks.
    See: https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_
    """
    for clip in script.named(*_CLIPS):
        takes = [part for part in clip.argument(0, "parameters").calls() if part.method == "parameters"]
        if any(is_result(call.parts[0], _shards) for call in takes):
            yield Spot(
                clip,
                "Each rank clips by the norm of its own shards: FSDP has its own clip_grad_norm_",
                remedy="Call the model's clip_grad_norm_ on all ranks",
                write=("model.clip_grad_norm_(max_norm)",),
            )


def _shards(call: Call) -> bool:
    strategy = call.given(2, "sharding_strategy")
    return call.name == names.FSDP[0] and not call.has_stars and bool(not strategy or _SHARDS.search(strategy.text))
