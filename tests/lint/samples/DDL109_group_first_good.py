import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def start():
    if not dist.is_initialized():
        dist.init_process_group("nccl")


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    start()
    model = DistributedDataParallel(nn.Linear(4, 4).to(local_rank), device_ids=[local_rank])
    start()
    model.train()
    dist.destroy_process_group()


main()
