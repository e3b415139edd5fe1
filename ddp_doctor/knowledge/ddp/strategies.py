"""The ways to spread parameters, gradients and optimizer state over ranks, and what a rank keeps in each.

Sources: the papers on ZeRO (arXiv 1910.02054, stages 1 to 3) and FSDP (arXiv 2304.11277); torch 2.13,
torch/nn/parallel/distributed.py, torch/distributed/optim/zero_redundancy_optimizer.py and
torch/distributed/fsdp/_fully_shard/. fully_shard is public as torch.distributed.fsdp.fully_shard since torch 2.6.
"""

from dataclasses import dataclass

#: First torch release with torch.distributed.fsdp.fully_shard.
FSDP2_NEEDS = "2.6"
#: Memory that CUDA's caching allocator keeps beyond what is allocated, as a share of that, in training that splits and
#: joins blocks of many sizes: 15% in the mean of eight LLM trainings on A100s, up to 33% (GMLake, arXiv 2401.08156).
RESERVE = 0.15
#: DistributedDataParallel broadcasts copies of parameters and buffers in parts of this size when it is made
#: (broadcast_bucket_size in torch 2.13 nn/parallel/distributed.py).
BROADCAST_BYTES = 250 << 20


@dataclass(frozen=True)
class Strategy:
    """A way to spread a model over ranks."""

    name: str
    words: str
    # By FSDP2, which needs FSDP2_NEEDS; gradients and optimizer state are sharded with them.
    shards_parameters: bool = False
    shards_state: bool = False  # only the optimizer's state
    bucket_view: bool = False  # gradients are views into DDP's buckets
    reshards: bool = False  # full parameters are freed after their unit's forward, and gathered again
    within_node: bool = False  # sharded over the ranks of a node, replicated over nodes
    offloads: bool = False  # parameters, gradients and state are in the host's memory


STRATEGIES = (
    Strategy("ddp", "DDP"),
    Strategy("ddp-bucket-view", "DDP, gradient_as_bucket_view=True", bucket_view=True),
    Strategy("zero1", "ZeRO-1: DDP with ZeroRedundancyOptimizer", bucket_view=True, shards_state=True),
    Strategy("zero2", "ZeRO-2: FSDP2, reshard_after_forward=False", shards_parameters=True),
    Strategy("zero3", "ZeRO-3: FSDP2", shards_parameters=True, reshards=True),
    Strategy("hsdp", "HSDP: FSDP2 inside each node", shards_parameters=True, reshards=True, within_node=True),
    Strategy(
        "zero3-offload",
        "ZeRO-3 with CPU offload: FSDP2, CPUOffloadPolicy",
        shards_parameters=True,
        reshards=True,
        offloads=True,
    ),
)
BY_NAME = {strategy.name: strategy for strategy in STRATEGIES}
