"""Rules on how a model is wrapped, and on the arguments of DistributedDataParallel.

model = DDP(Net(), device_ids=[local_rank]).to(device)     wrapped first, moved then
model = SyncBatchNorm.convert_sync_batchnorm(DDP(net))     wrapped first, converted then
DDP(model, find_unused_parameters=True)                    searches every forward for parameters without a gradient
DDP(model, timeout=timedelta(minutes=30))                  the time-out is init_process_group's
DDP(FullyShardedDataParallel(net))                         gradients are reduced twice
FSDP(model, auto_wrap_policy=policy, cpu_offload=CPUOffload(offload_params=True))      one unit for each layer
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from ddp_doctor.features.lint import modules, names, training
from ddp_doctor.features.lint.devices import has_one_rank, moves_to_device
from ddp_doctor.features.lint.rule import Spot, always, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Value, is_result
from ddp_doctor.model.choices import Confidence, Consequence, Severity

_MOVES = ("cuda", "to")
#: Names that suggest a test for a process group.
_UNDISTRIBUTED = re.compile(r"dist|ddp|rank|world|initialized|parallel|launch|slurm|spawn", re.IGNORECASE)
_COST = "a process group, a DistributedSampler, and saving on rank 0 only"


@lint_rule("DDL101", "data-parallel-used", Consequence.COST, concerns=always)
def data_parallel_used(script: Script) -> Iterator[Spot]:
    """The script uses torch.nn.DataParallel, although DistributedDataParallel would be faster.

    Finds: A call of `torch.nn.DataParallel` that is not the alternative to DistributedDataParallel in the same script.
        Severity is info in a file that runs no `backward()`: it may serve inference or pass the model on. In a script
        with a process group, it is reported only if the group certainly runs and nothing reduces the gradients by hand.
    Why: DataParallel is one process with one thread per GPU. Python's lock lets only one thread run at a time, every
        step copies the model to all GPUs, and GPU 0 gathers the outputs. It cannot use a second node. PyTorch itself
        recommends DistributedDataParallel, even on one machine. In a process group, each rank uses all GPUs at the same
        time as the others, and without DDP the ranks' gradients stay different.
    Remedy: Start one process per GPU with torchrun and wrap the model in DistributedDataParallel.
    See: https://pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
        https://pytorch.org/docs/stable/notes/cuda.html#cuda-nn-ddp-instead
    """
    if script.libraries:
        return
    trains = any(script.methods("backward"))
    for call in script.named(names.DATA_PARALLEL):
        if script.is_distributed and not _is_in_a_group(script, call):
            continue
        yield Spot(
            call,
            "Each rank uses all GPUs through torch.nn.DataParallel"
            if script.is_distributed
            else "torch.nn.DataParallel runs all GPUs from one process, which is slower than DistributedDataParallel",
            remedy="Wrap the model in torch.nn.parallel.DistributedDataParallel and start the script with torchrun",
            cost="" if script.is_distributed else _COST,
            severity=None if trains else Severity.INFO,
        )


def _is_in_a_group(script: Script, call: Call) -> bool:
    """Return True if a process group certainly runs at a DataParallel call that does not replace DDP on purpose.

    False if the ranks reduce gradients by themselves, or for a model without training (``net.eval()``).
    """
    starts = [start for start in script.named(names.INIT) if start.precedes(call)]
    holds = {(id(condition.test), condition.holds) for condition in call.conditions}
    if not any({(id(each.test), each.holds) for each in start.conditions} <= holds for start in starts):
        return False
    if any(_UNDISTRIBUTED.search(condition.test.text) for condition in call.conditions):
        return False
    if any(map(training.reduces_gradients, script.calls)) or has_one_rank(script):
        return False
    others = [other for wrap in (names.DDP, *names.FSDP) for other in script.named(wrap)]
    return not any(training.exclude_each_other(call, other) for other in others)


@lint_rule("DDL102", "wrapped-before-moved", Consequence.FAILS)
def wrapped_before_moved(script: Script) -> Iterator[Spot]:
    """A model is moved to its GPU after DistributedDataParallel wrapped it.

    Finds: `.to(...)` or `.cuda(...)` on a model that is already wrapped, or on the model inside the wrapper.
    Why: DDP checks parameters and devices once, while it wraps. With `device_ids`, it refuses parameters on the CPU,
        and over NCCL, it fails to broadcast them. If the wrapping succeeds, its buckets and hooks belong to the
        parameters on the CPU.
    Remedy: Move first, then wrap: `model = DDP(model.to(device), device_ids=[local_rank])`.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    for call in script.methods(*_MOVES):
        for wrap in _wraps_of(call.receiver) if moves_to_device(call) else ():
            model = wrap.argument(0, "module")
            may_have_been_moved = not model or any(source.method in _MOVES for source in model.calls())
            if wrap.precedes(call) and not may_have_been_moved:
                yield Spot(
                    call,
                    f".{call.method}() moves the model after line {wrap.node.lineno} wrapped it in DDP",
                    remedy="Move the model before wrapping it",
                )


@lint_rule("DDL103", "sync-batchnorm-after-wrapping", Consequence.WRONG)
def sync_batchnorm_after_wrapping(script: Script) -> Iterator[Spot]:
    """BatchNorm layers are converted to SyncBatchNorm after the model was wrapped.

    Finds: `SyncBatchNorm.convert_sync_batchnorm` on a model that DistributedDataParallel already wrapped.
    Why: The conversion creates new layers with new buffers. DDP recorded the old buffers while it wrapped, so it does
        not broadcast the new ones. torch's documentation requires the other order.
    Remedy: Convert first, then wrap: `model = DDP(SyncBatchNorm.convert_sync_batchnorm(model).to(device))`.
    See: https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    """
    for call in script.named(names.CONVERT_SYNC_BN):
        wrap = next(_wraps_of(call.argument(0, "module")), None)
        if wrap is not None and wrap.precedes(call):
            yield Spot(
                call,
                f"The model is converted to SyncBatchNorm after line {wrap.node.lineno} wrapped it in DDP",
                remedy="Convert the model before wrapping it",
            )


def _wraps_of(value: Value) -> Iterator[Call]:
    makers = (maker for option in value.objects() for maker in option.wrapper.makers())
    return (maker for maker in makers if maker.name == names.DDP)


@lint_rule("DDL127", "unused-parameters-searched-in-vain", Consequence.COST)
def unused_parameters_searched_in_vain(script: Script) -> Iterator[Spot]:
    """find_unused_parameters=True is set, although the forward has no branch.

    Finds: `find_unused_parameters=True` for a model whose classes are defined in the file, use all their layers and
        have no branches in their forward. Severity is info instead of warning if the file does not contain the model.
    Why: DDP then traverses the entire autograd graph after every forward, and sends a map of used parameters to all
        ranks in every step. PyTorch itself warns about it in the log. The flag also hides a layer that the forward does
        not use by mistake.
    Remedy: Remove the flag. If a step then fails with "Expected to have finished reduction", the message names the
        unused parameters. If the same parameters are unused in all steps, `static_graph=True` is cheaper.
    See: https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    """
    for wrap in script.wraps:
        has_init_sync = isinstance(wrap.argument(names.SHARED_BY_DDP).constant, bool)
        flag = wrap.argument(8 if has_init_sync else 7, "find_unused_parameters")
        if flag.constant is not True:
            continue
        classes = modules.wrapped_modules(script, wrap)
        visible = bool(classes) and all(module.is_whole for module in classes)
        if visible and any(_may_need_it(script, module) for module in classes):
            continue
        yield Spot(
            wrap,
            "find_unused_parameters=True is unnecessary: the forward of this model has no branch"
            if visible
            else "find_unused_parameters=True searches the graph in every step, and only unused parameters need that",
            remedy="Remove find_unused_parameters, unless a step then fails",
            severity=None if visible else Severity.INFO,
            confidence=Confidence.LIKELY if visible else Confidence.POSSIBLE,
        )


@lint_rule("DDL128", "unused-parameters-not-allowed-for", Consequence.FAILS)
def unused_parameters_not_allowed_for(script: Script) -> Iterator[Spot]:
    """Some forwards do not use a layer, and DDP is not set to expect this.

    Finds: In the class of a wrapped model, a layer with parameters, or a Sequential of such layers, that nothing in the
        file uses (error), or that the forward uses only sometimes (warning): under a condition on its input or on
        chance, in one branch of `a if task == "left" else b`, by random selection (`random.choice(self.layers)`), or by
        a flag that the training loop draws or counts and passes (`model(x, step < 100)`). Reported only if DDP has
        neither `find_unused_parameters=True` nor `static_graph=True`.
    Why: DDP waits for the gradient of every parameter. After a step in which a parameter has none, the next step fails
        with "Expected to have finished reduction in the prior iteration". If ranks take different branches, they hang.
    Remedy: Remove an unused layer. If only some steps use it, set `find_unused_parameters=True`.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        https://pytorch.org/docs/stable/notes/ddp.html#internal-design
    """
    for wrap in script.wraps:
        options = (wrap.argument(None, name) for name in ("find_unused_parameters", "static_graph"))
        allows_for_unused = wrap.has_stars or any(option and option.constant is not False for option in options)
        if allows_for_unused or len(wrap.args) > names.SHARED_BY_DDP:
            continue
        for module in modules.wrapped_modules(script, wrap):
            if modules.reads_indirectly(script, module):
                continue
            for layer in modules.never_used(script, module):
                yield _unused(layer, f"No forward uses this layer of {module.definition.name}: the second step fails")
            for layer in modules.sometimes_used(script, module):
                title = f"Only some steps use this layer of {module.definition.name}: a step without it fails"
                yield _unused(layer, title, Severity.WARNING)


def _unused(layer: Value, title: str, severity: Severity | None = None) -> Spot:
    remedy = "Set find_unused_parameters=True" if severity else "Remove the layer, or use it in the forward"
    cost = "a graph traversal after every forward" if severity else ""
    return Spot(layer, title, remedy=remedy, cost=cost, severity=severity)


def _may_need_it(script: Script, module: modules.Module) -> bool:
    return (
        modules.has_branches(module)
        or modules.reads_indirectly(script, module)
        or any(modules.never_used(script, module))
        or any(modules.sometimes_used(script, module))
    )


#: Other functions that make each layer a unit.
_OFFLOAD_POLICY = "torch.distributed.fsdp.CPUOffloadPolicy"
_UNITS = (names.FSDP[1], *(f"torch.distributed.fsdp.wrap.{name}" for name in ("wrap", "enable_wrap")))


@lint_rule("DDL144", "whole-model-offloaded-in-one-unit", Consequence.COST, concerns=always)
def whole_model_offloaded_in_one_unit(script: Script) -> Iterator[Spot]:
    """FSDP offloads parameters to the CPU, but the entire model is one unit.

    Finds: `FullyShardedDataParallel(..., cpu_offload=CPUOffload(offload_params=True))` without `auto_wrap_policy`, as
        the only use of FSDP in the script; or one `fully_shard(model, offload_policy=CPUOffloadPolicy())` and no other.
    Why: FSDP gathers one unit at a time. If the entire model is one unit, every forward copies all parameters to the
        GPU and gathers them at once. This uses the memory that offloading and sharding should save, and nothing
        overlaps.
    Remedy: Pass an `auto_wrap_policy` that makes each layer a unit, for example `transformer_auto_wrap_policy`.
    See: https://pytorch.org/docs/stable/fsdp.html
        https://pytorch.org/tutorials/intermediate/FSDP_tutorial.html
    """
    units = list(script.named(names.FSDP[1]))
    if len({id(unit.node) for unit in units}) == 1 and not units[0].loops and not script.calls_any(names.FSDP[0]):
        policy = units[0].argument(None, "offload_policy")
        if is_result(policy, lambda made: made.name == _OFFLOAD_POLICY):
            yield _one_unit(units[0], "Call fully_shard on each layer first, then on the model")
    calls = list(script.named(names.FSDP[0]))
    if len({id(call.node) for call in calls}) != 1 or script.calls_any(*_UNITS):
        return
    call = calls[0]
    if not call.has_stars and not call.given(4, "auto_wrap_policy") and _offloads(call):
        yield _one_unit(call, "Set an auto_wrap_policy that makes each layer a unit")


def _one_unit(call: Call, remedy: str) -> Spot:
    title = "FSDP offloads the entire model as one unit: each forward copies all of it to the GPU"
    return Spot(call, title, remedy=remedy)


def _offloads(call: Call) -> bool:
    def offloads_parameters(made: Call) -> bool:
        offloads = made.argument(0, "offload_params").constant is True
        return offloads and made.name == "torch.distributed.fsdp.CPUOffload"

    return is_result(call.argument(3, "cpu_offload"), offloads_parameters)


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
_OF_THE_GROUP = "Pass it to init_process_group"
_INSTEAD = {
    **dict.fromkeys(("backend", "init_method", "world_size", "rank", "store"), _OF_THE_GROUP),
    **dict.fromkeys(("timeout", "time_out", "group_timeout"), f"{_OF_THE_GROUP}: timeout=timedelta(minutes=30)"),
    **dict.fromkeys(("device", "device_id", "devices", "gpu", "gpus", "gpu_ids", "local_rank"), "Use device_ids"),
    **dict.fromkeys(("group", "pg"), "Use process_group"),
    **dict.fromkeys(
        ("sync_bn", "sync_batchnorm"), "Convert the model with SyncBatchNorm.convert_sync_batchnorm before"
    ),
    **dict.fromkeys(
        ("accumulation_steps", "gradient_accumulation_steps"), "Run the passes before the last inside no_sync()"
    ),
    **dict.fromkeys(
        ("auto_wrap_policy", "sharding_strategy", "cpu_offload", "sync_module_states", "use_orig_params"),
        "It is an argument of FullyShardedDataParallel",
    ),
    **dict.fromkeys(("delay_allreduce", "message_size"), "It is an argument of Apex's class of the same name"),
}


@lint_rule("DDL153", "argument-unknown-to-ddp", Consequence.FAILS, concerns=always)
def argument_unknown_to_ddp(script: Script) -> Iterator[Spot]:
    """DistributedDataParallel gets an argument that it does not have.

    Finds: `DDP(model, timeout=...)` and every other keyword that no torch up to 2.15 has, even if it comes from a
        dictionary with `**` or from `functools.partial(DDP, ...)`.
    Why: The constructor raises `TypeError: __init__() got an unexpected keyword argument` on all ranks, after the job
        has waited for its nodes and built its model.
    Remedy: Pass a timeout, a backend and a rank to `init_process_group`, and GPUs as `device_ids`.
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
                remedy=_INSTEAD.get(name) or (f"Use {near[0]}" if near else "Remove it"),
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
#: The position of the model argument.
_MODEL_AT = {"deepspeed.initialize": 1, "deepspeed.DeepSpeedEngine": 1, "deepspeed.runtime.engine.DeepSpeedEngine": 1}
_ZERO_INIT = ("deepspeed.zero.Init", "deepspeed.zero.partition_parameters.Init")


@lint_rule("DDL154", "wrapped-twice", Consequence.FAILS, concerns=always)
def wrapped_twice(script: Script) -> Iterator[Spot]:
    """A model is wrapped in DDP and in another wrapper that shards or reduces its gradients.

    Finds: DistributedDataParallel around a model under FSDP (including `fully_shard`), FairScale's FSDP or
        ShardedDataParallel, an engine of DeepSpeed, a model created under `deepspeed.zero.Init()`, or
        DistributedDataParallel itself; and each of these around a model that DDP has wrapped. Not reported for
        optimizers that only shard their states (ZeroRedundancyOptimizer, FairScale's OSS), because they are made for
        DDP.
    Why: Both wrappers hook into the same backward pass. Gradients are reduced twice, or DDP waits for gradients of
        parameters that are sharded: "Expected to have finished reduction", wrong shapes, or a hang. DDP also keeps all
        parameters on each GPU, so sharding saves no memory.
    Remedy: Remove DDP: the other wrapper reduces the gradients.
    See: https://pytorch.org/docs/stable/fsdp.html
        https://www.deepspeed.ai/getting-started/
        https://fairscale.readthedocs.io/en/latest/api/nn/sharded_ddp.html
    """
    for outer in script.named(*_WRAPPERS, names.FSDP[1]):
        model = outer.argument(_MODEL_AT.get(outer.name, 0), "module", "model")
        wrappers = {_wrapper(script, option, outer) for option in model.objects()}
        inner = wrappers.pop() if len(wrappers) == 1 else ""  # uncertain if the script has several paths
        name = _WRAPPERS.get(outer.name, "FSDP")
        if inner and "DistributedDataParallel" in (inner, name):
            yield Spot(
                outer,
                f"{name} wraps a model that {inner} already wraps: both handle its gradients",
                remedy="Use only one wrapper: remove DistributedDataParallel",
            )


def _wrapper(script: Script, value: Value, outer: Call) -> str:
    """Return the wrapper that a model already has, or ""."""
    if value.kind == "element" and value.attribute == "0":
        made = {maker.name for maker in value.owner.makers()}
        return "DeepSpeed" if made == {"deepspeed.initialize"} else ""
    shards = (shard for shard in script.named(names.FSDP[1]) if shard.args and shard.precedes(outer))
    given = (shard.args[0] for shard in shards if not training.exclude_each_other(shard, outer))
    if any(list(training.whole(part).objects()) == [value] for part in given):
        return "FSDP"
    if not isinstance(value, Call):
        return ""
    if any(isinstance(each, Call) and each.name in _ZERO_INIT and each.is_enabled for each in value.place.withs):
        return "deepspeed.zero.Init"
    if not outer.comes_after(value):
        return ""  # made in another method, which may not run before
    return "" if value.name == "deepspeed.initialize" else _WRAPPERS.get(value.name, "")
