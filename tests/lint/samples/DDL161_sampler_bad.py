import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler

LOCAL_RANK = int(os.getenv("LOCAL_RANK", "0"))


def main(dataset, model):
    torch.cuda.set_device(LOCAL_RANK)
    dist.init_process_group("nccl")
    sampler = DistributedSampler(dataset, num_replicas=dist.get_world_size(), rank=LOCAL_RANK)  # expect: DDL161
    model = DDP(model.to(LOCAL_RANK), device_ids=[LOCAL_RANK])
    dist.destroy_process_group()
    return sampler, model
