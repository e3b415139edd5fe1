"""The model in DDP with a bucket size, and the buckets that DDP made."""

from copy import deepcopy
from typing import Any

from ddp_doctor.checks.ddp.step_time.timing import agreed, finish
from ddp_doctor.checks.ddp.step_time.work import Work
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip


def wrap(ctx: RankContext, work: Work, cap_mib: float | None) -> Any:
    """A copy of the module in DDP; without a cap as DDP does by itself.

    A copy, because the reducers of two wrappers would both act on the gradients of one module. Raises Skip, on
    all ranks, where one of them cannot copy it.
    """
    from torch.nn.parallel import DistributedDataParallel

    module = _copied(ctx, work.module)
    given = {**work.options, **({} if cap_mib is None else {"bucket_cap_mb": cap_mib})}
    with ctx.step("ddp_construct", f"buckets of {cap_mib:g} MiB" if cap_mib else "buckets as usual"):
        ddp = DistributedDataParallel(module, process_group=ctx.group, **given)
        finish(ctx)
    return ddp


def _copied(ctx: RankContext, module: Any) -> Any:
    """Code of the user's may make this impossible: a lock, a file, a tensor with a history."""
    copied, problem = None, ""
    try:
        copied = deepcopy(module)
    except Exception as error:  # noqa: BLE001 - whatever an attribute of the user's says to it
        problem = f"{type(error).__name__} on this rank"
    if agreed(ctx, float(bool(problem))):
        raise Skip(f"the model cannot be copied, which is needed here ({problem or 'on another rank'})")
    return copied


def built(ddp: Any) -> tuple[int, ...]:
    """The bytes of the buckets, in the order of their all-reduces; none where DDP does not tell."""
    tell = getattr(ddp, "_get_ddp_logging_data", None)  # an inner call of torch: it may go
    if tell is None:
        return ()
    data = tell()
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return tuple(int(part) for part in str(text).split(",") if part.strip().isdigit())
