"""buffers: does DistributedDataParallel give every rank rank 0's parameters and buffers?

What the probe reads on each rank is the state of a small model that every rank filled with its own stamp
(rank 0 with 1, rank 1 with 2, …)::

                                     before wrapping   after wrapping   stamped anew   after a forward
    weight, rank 1                   2. 2. 2. …        1. 1. 1. …       -              -
    float_stamp, rank 1              2. 2. 2. …        1. 1. 1. …       2. 2. 2. …     1. 1. 1. …
    norm.running_mean, rank 1        0. 0. 0.          0. 0. 0.         -              1. 2. 3.

The batches are known in closed form too: after one forward the running mean of BatchNorm must be half of
the rank's own (momentum 0.5), the next starts from rank 0's, and SyncBatchNorm's is that of all ranks.
From level standard on it also wraps with broadcasting off, gives a buffer a new tensor after wrapping, and
times what the broadcast adds to a forward.

Why it matters: ranks that start from different weights train different models. When running statistics drift
apart, the saved model (rank 0's) evaluates worse than its training losses suggest.
"""

from collections.abc import Iterator
from typing import Any

from ddp_doctor.checks.ddp.buffers import rules
from ddp_doctor.checks.ddp.buffers.stamps import (
    measure,
    measure_options,
    measure_sync_batch_norm,
    stamped_model,
    wrap,
)
from ddp_doctor.facts.ddp.model_state import Buffers
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in


def probe(ctx: RankContext) -> Buffers:
    """Wrap stamped models in DDP and compare their state with its closed form."""
    fact = measure(ctx, wrap(ctx, stamped_model(ctx)))
    if ctx.level.includes(Level.STANDARD):
        fact = measure_options(ctx, fact)
    if not ctx.device.startswith("cuda"):
        reason = "SyncBatchNorm works on accelerators only, and these ranks are on the CPU"
        return fact.model_copy(update={"sync_batch_norm_reason": reason})
    import torch

    kind: Any = torch.nn.SyncBatchNorm  # its methods have no types
    model = wrap(ctx, kind.convert_sync_batchnorm(stamped_model(ctx), ctx.group))
    return fact.model_copy(update=measure_sync_batch_norm(ctx, model))


def measurements(recording: Recording) -> Iterator[Measurement]:
    """What the broadcast of a convolutional net's buffers adds to each forward, on the slowest rank."""
    costs = [rank.fact.cost for rank in recording.facts(Buffers) if rank.fact.cost]
    if costs:
        slowest = max(max(cost.on_s - cost.off_s, 0.0) for cost in costs)
        labels: dict[str, str | int | float] = {"ranks": len(costs), "bytes": costs[0].size_bytes}
        yield Measurement(name="buffer_broadcast", value=slowest, unit="s", labels=labels)


CHECK = Check(
    id="buffers",
    title="DDP broadcasts parameters and buffers",
    where=Where.RANK,
    probe=probe,
    facts=(Buffers,),
    rules=rules_in(rules),
    level=Level.QUICK,
    min_ranks=2,
    measurements=measurements,
)
