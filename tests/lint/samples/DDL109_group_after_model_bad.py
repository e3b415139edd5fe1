import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def start():
    dist.init_process_group("nccl")  # expect: DDL109


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = DistributedDataParallel(nn.Linear(4, 4).to(local_rank), device_ids=[local_rank])
    start()
    model.train()
    dist.destroy_process_group()


main()
