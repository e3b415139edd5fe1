"""Rules on what DistributedDataParallel is given: arguments that it does not have, and models that are wrapped already.

DDP(model, timeout=timedelta(minutes=30))                     the time-out is init_process_group's
DDP(FullyShardedDataParallel(net)), deepspeed.initialize(model=DDP(net))      gradients are reduced twice
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from ddp_doctor.lint import names
from ddp_doctor.lint.rule import Spot, always, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, Value
from ddp_doctor.model.choices import Severity

#: Source: the signatures in torch/nn/parallel/distributed.py of torch 1.10 to 2.15.
_ARGUMENTS = frozenset(
    (
        *("module", "device_ids", "output_device", "dim", "broadcast_buffers", "init_sync", "process_group"),
        *("bucket_cap_mb", "find_unused_parameters", "check_reduction", "gradient_as_bucket_view"),
        *("static_graph", "delay_all_reduce_named_params", "param_to_hook_all_reduce", "mixed_precision"),
        *("device_mesh", "skip_all_reduce_unused_params", "bucket_cap_mb_list", "batched_grad_copy"),
        *("forward_sync_buffers", "lazy_bucket_allocation"),
    )
)
_OF_THE_GROUP = "Give it to init_process_group"
_INSTEAD = {
    **dict.fromkeys(("backend", "init_method", "world_size", "rank", "store"), _OF_THE_GROUP),
    **dict.fromkeys(("timeout", "time_out", "group_timeout"), f"{_OF_THE_GROUP}: timeout=timedelta(minutes=30)"),
    **dict.fromkeys(("device", "device_id", "devices", "gpu", "gpus", "gpu_ids", "local_rank"), "device_ids is meant"),
    **dict.fromkeys(("group", "pg"), "process_group is meant"),
    **dict.fromkeys(
        ("sync_bn", "sync_batchnorm"), "Convert the model with SyncBatchNorm.convert_sync_batchnorm before"
    ),
    **dict.fromkeys(
        ("accumulation_steps", "gradient_accumulation_steps"), "Run the passes before the last inside of no_sync()"
    ),
    **dict.fromkeys(
        ("auto_wrap_policy", "sharding_strategy", "cpu_offload", "sync_module_states", "use_orig_params"),
        "It is an argument of FullyShardedDataParallel",
    ),
    **dict.fromkeys(("delay_allreduce", "message_size"), "It is an argument of Apex's class of the same name"),
}


@lint_rule("DDL153", "argument-unknown-to-ddp", Severity.ERROR, concerns=always)
def argument_unknown_to_ddp(script: Script) -> Iterator[Spot]:
    """DistributedDataParallel is given an argument that it does not have.

    Finds: `DDP(model, timeout=...)` and every other keyword that no torch up to 2.15 has, also from a dictionary behind
        two stars and from `functools.partial(DDP, ...)`.
    Why: The constructor raises `TypeError: __init__() got an unexpected keyword argument` on all ranks, after the job
        has waited for its nodes and built its model.
    Remedy: A time-out, a backend and a rank belong to `init_process_group`, GPUs are `device_ids`.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    partial = (call for call in script.named("functools.partial") if call.args and call.args[0].reference == names.DDP)
    for call in (*script.named(names.DDP), *partial):
        for name in call.keywords:
            if name in _ARGUMENTS:
                continue
            near = get_close_matches(name, _ARGUMENTS, 1, 0.75)
            yield Spot(
                call,
                f"DistributedDataParallel has no argument {name}: it raises TypeError",
                remedy=_INSTEAD.get(name) or (f"{near[0]} is meant" if near else "Leave it out"),
            )


_FAIRSCALE = ("fairscale.nn", "fairscale.nn.data_parallel")
_WRAPPERS = {
    names.DDP: "DistributedDataParallel",
    names.FSDP[0]: "FSDP",
    **{f"{module}.FullyShardedDataParallel": "FairScale's FSDP" for module in _FAIRSCALE},
    **{f"{module}.ShardedDataParallel": "FairScale's ShardedDataParallel" for module in _FAIRSCALE},
    "deepspeed.initialize": "DeepSpeed",
    "deepspeed.DeepSpeedEngine": "DeepSpeed",
    "deepspeed.runtime.engine.DeepSpeedEngine": "DeepSpeed",
    "deepspeed.tp_model_init": "DeepSpeed",
}
#: Where each takes the model.
_MODEL_AT = {"deepspeed.initialize": 1, "deepspeed.DeepSpeedEngine": 1, "deepspeed.runtime.engine.DeepSpeedEngine": 1}
_ZERO_INIT = ("deepspeed.zero.Init", "deepspeed.zero.partition_parameters.Init")


@lint_rule("DDL154", "wrapped-twice", Severity.ERROR, concerns=always)
def wrapped_twice(script: Script) -> Iterator[Spot]:
    """A model is wrapped in DDP and in something else that shares out or reduces its gradients.

    Finds: DistributedDataParallel around a model under FSDP (`fully_shard` too), FairScale's FSDP or
        ShardedDataParallel, an engine of DeepSpeed, a model made under `deepspeed.zero.Init()`, or
        DistributedDataParallel itself; and each of these around a model that DDP has wrapped. Optimizers that only
        share out their states (ZeroRedundancyOptimizer, FairScale's OSS) belong to DDP and are not meant.
    Why: Both hook into the same backward pass. Gradients are reduced twice, or DDP waits for gradients of parameters
        that are sharded away: "Expected to have finished reduction", wrong shapes, or a hang. DDP also keeps all
        parameters on each GPU, so that nothing of the memory is saved.
    Remedy: Leave DDP out: the other wrapper reduces the gradients itself.
    See: https://pytorch.org/docs/stable/fsdp.html
        https://www.deepspeed.ai/getting-started/
        https://fairscale.readthedocs.io/en/latest/api/nn/sharded_ddp.html
    """
    for outer in script.named(*_WRAPPERS, names.FSDP[1]):
        model = outer.argument(_MODEL_AT.get(outer.name, 0), "module", "model")
        wrappers = {_wrapper(script, option, outer) for option in model.objects()}
        inner = wrappers.pop() if len(wrappers) == 1 else ""  # not surely, if the script may go several ways
        name = _WRAPPERS.get(outer.name, "FSDP")
        if inner and "DistributedDataParallel" in (inner, name):
            yield Spot(
                outer,
                f"{name} is given a model that {inner} has wrapped already: both handle its gradients",
                remedy="Wrap it in one of them: leave DistributedDataParallel out",
            )


def _wrapper(script: Script, value: Value, outer: Call) -> str:
    """What wraps a model already; empty if nothing does."""
    if value.kind == "element" and value.attribute == "0":
        made = {maker.name for maker in value.owner.makers()}
        return "DeepSpeed" if made == {"deepspeed.initialize"} else ""
    shards = (shard.args[0] for shard in script.named(names.FSDP[1]) if shard.args and shard.precedes(outer))
    if any(given.kind != "loop" and list(given.objects()) == [value] for given in shards):
        return "FSDP"
    if not isinstance(value, Call):
        return ""
    if any(isinstance(each, Call) and each.name in _ZERO_INIT and each.is_enabled for each in value.place.withs):
        return "deepspeed.zero.Init"
    return "" if value.name == "deepspeed.initialize" else _WRAPPERS.get(value.name, "")
