"""data_sharding: does every sample reach exactly one rank, in a new order each epoch?

What the probe reads on each rank are the indices that torch's DistributedSampler gives it::

    data set of 17, 2 ranks, drop_last off
      rank 0    epoch 0: 0 2 11 13 1 …    again, without set_epoch(): 0 2 11 13 1 …    after set_epoch(1): 5 12 …
      rank 1    epoch 0: 9 4 16  3 7 …    …
      together  0 to 16, each once, and one index again, so that both have 9 (padding); with drop_last, 16 of 17

It draws random numbers after a seed that all ranks share and after one of the rank's own, and trains one weight
under ``DDP.join()`` where the first rank has one batch more than the others; the result is known in closed form.

Why it matters: a rank with the wrong shard trains, and the loss falls, on data that others have too or on less
of it. A rank with one batch less leaves the others waiting in an all-reduce for ever.
"""

from ddp_doctor.checks.ddp.data_sharding import coverage, samplers
from ddp_doctor.checks.ddp.data_sharding.measure import agreed_steps, joined, shares, start_up_files, streams
from ddp_doctor.facts.ddp.data_sharding import DataSharding
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.rule import rules_in


def probe(ctx: RankContext) -> DataSharding:
    """Take this rank's shares, draw its random numbers, and train on uneven inputs."""
    import torch

    fact = DataSharding(
        world_size=ctx.world_size,
        group_rank=ctx.group_rank,
        torch_seed=torch.initial_seed(),
        start_up_files=start_up_files(),
        shares=shares(ctx),
        streams=streams(ctx),
    )
    if ctx.world_size == 1:
        return fact.model_copy(update={"join_reason": "a world of one rank has no uneven inputs"})
    steps = agreed_steps(ctx)
    return fact.model_copy(update={"steps": steps, "joined": joined(ctx, steps)})


CHECK = Check(
    id="data_sharding",
    title="Ranks share the data out",
    where=Where.RANK,
    probe=probe,
    facts=(DataSharding,),
    rules=rules_in(coverage, samplers),
    level=Level.STANDARD,
    cost_s=0.1,
)
