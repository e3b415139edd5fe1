import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler


def setup():
    rank = int(os.environ["RANK"])
    gpus = torch.cuda.device_count()
    dist.init_process_group("nccl", rank=rank, world_size=gpus)  # expect: DDL160
    return rank, gpus


def main(dataset, model):
    rank, gpus = setup()
    sampler = DistributedSampler(dataset, num_replicas=gpus, rank=dist.get_rank())  # expect: DDL160
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    dist.destroy_process_group()
    return sampler, model, rank
