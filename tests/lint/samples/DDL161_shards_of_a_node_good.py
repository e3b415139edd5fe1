import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler


def main(data_of_this_node, other, model):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    within = DistributedSampler(data_of_this_node, num_replicas=int(os.environ["LOCAL_WORLD_SIZE"]), rank=local_rank)
    across = DistributedSampler(other, num_replicas=dist.get_world_size(), rank=dist.get_rank())
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    dist.destroy_process_group()
    return within, across, model
