import torch
from torch.distributed import fsdp


class Trainer:
    def __init__(self, model, rank):
        offload = fsdp.CPUOffload(offload_params=True)
        self.model = fsdp.FullyShardedDataParallel(  # expect: DDL144
            model,
            sharding_strategy=fsdp.ShardingStrategy.FULL_SHARD,
            cpu_offload=offload,
            auto_wrap_policy=None,
            device_id=torch.cuda.current_device(),
        )
        self.rank = rank
