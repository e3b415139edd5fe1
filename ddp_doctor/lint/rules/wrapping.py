"""Rules on how a model is wrapped.

model = DDP(Net(), device_ids=[local_rank]).to(device)     wrapped first, moved then
model = SyncBatchNorm.convert_sync_batchnorm(DDP(net))     wrapped first, converted then
"""

from __future__ import annotations

from collections.abc import Iterator

from ddp_doctor.lint import names
from ddp_doctor.lint.devices import moves_to_device
from ddp_doctor.lint.rule import Spot, always, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, Value
from ddp_doctor.model.choices import Severity

_MOVES = ("cuda", "to")


@lint_rule("DDL101", "data-parallel-used", Severity.WARNING, concerns=always)
def data_parallel(script: Script) -> Iterator[Spot]:
    """torch.nn.DataParallel is used where DistributedDataParallel would be faster.

    What it finds
        A call of `torch.nn.DataParallel` that is not the alternative to DistributedDataParallel in the same script.
        Information only in a file that runs no `backward()`: it may serve inference, or hand the model on.

    Why it matters
        DataParallel is one process with one thread for each GPU: Python's lock lets one of them run at a time, the
        model is copied to all GPUs in every step, and GPU 0 gathers the outputs. It cannot use a second node. PyTorch
        itself recommends DistributedDataParallel, also on one machine.

    Remedy
        Start one process for each GPU with torchrun and wrap the model in DistributedDataParallel.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
        https://pytorch.org/docs/stable/notes/cuda.html#cuda-nn-ddp-instead
    """
    if script.is_distributed or script.libraries:
        return
    trains = any(True for _ in script.methods("backward"))
    for call in script.named(names.DATA_PARALLEL):
        yield Spot(
            call,
            "torch.nn.DataParallel: one process drives all GPUs, one Python thread at a time",
            remedy="Wrap the model in torch.nn.parallel.DistributedDataParallel and start the script with torchrun",
            cost="The script needs a process group, a DistributedSampler, and saving on rank 0 alone",
            severity=None if trains else Severity.INFO,
        )


@lint_rule("DDL102", "wrapped-before-moved", Severity.ERROR)
def wrapped_before_moved(script: Script) -> Iterator[Spot]:
    """A model is moved to its GPU after DistributedDataParallel wrapped it.

    What it finds
        `.to(...)` or `.cuda(...)` on a model that is already wrapped, or on the model inside the wrapper.

    Why it matters
        DDP looks at parameters and devices once, while it wraps: with `device_ids` it refuses parameters on the CPU,
        over NCCL it fails to broadcast them, and where it does get through, its buckets and hooks belong to what was
        on the CPU.

    Remedy
        Move first, then wrap: `model = DDP(model.to(device), device_ids=[local_rank])`.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    for call in script.methods(*_MOVES):
        if call.receiver is None or not moves_to_device(call):
            continue
        for wrap in _wraps_of(call.receiver):
            if wrap.precedes(call) and not _was_moved(wrap):
                yield Spot(
                    call,
                    f"The model is moved by .{call.method}() after line {wrap.call.lineno} wrapped it in DDP",
                    remedy="Move the model before it is wrapped",
                )


@lint_rule("DDL103", "sync-batchnorm-after-wrapping", Severity.ERROR)
def sync_batchnorm_after_wrapping(script: Script) -> Iterator[Spot]:
    """BatchNorm layers are converted to SyncBatchNorm after the model was wrapped.

    What it finds
        `SyncBatchNorm.convert_sync_batchnorm` on a model that DistributedDataParallel already wrapped.

    Why it matters
        The conversion makes new layers with new buffers. What DDP noted of the old ones while it wrapped, no longer
        holds: the new buffers are not broadcast, and torch's documentation asks for the other order.

    Remedy
        Convert first, then wrap: `model = DDP(SyncBatchNorm.convert_sync_batchnorm(model).to(device))`.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
    """
    for call in script.named(names.CONVERT_SYNC_BN):
        model = call.argument(0, "module")
        wrap = next(_wraps_of(model), None) if model is not None else None
        if wrap is not None and wrap.precedes(call):
            yield Spot(
                call,
                f"The model is converted to SyncBatchNorm after line {wrap.call.lineno} wrapped it in DDP",
                remedy="Convert the model before it is wrapped",
            )


def _wraps_of(value: Value) -> Iterator[Call]:
    """The calls of DDP whose result, or the module inside it, a value may be."""
    for option in value.objects():
        inner = option.owner if option.kind == "attribute" and option.attribute == "module" else option
        for found in inner.objects() if inner is not None else ():
            if isinstance(found, Call) and found.name == names.DDP:
                yield found


def _was_moved(wrap: Call) -> bool:
    """Whether what was wrapped had been moved before, or comes from where that cannot be seen."""
    model = wrap.argument(0, "module")
    return model is None or any(
        isinstance(source, Call) and source.method in _MOVES for source in model.sources()
    )
