import os

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel as DDP


def dataset():
    return torchvision.datasets.CIFAR10("data", train=True, download=True)  # expect: DDL163


if __name__ == "__main__":
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    data = dataset()
    model = DDP(torch.nn.Linear(8, 2).to(local_rank), device_ids=[local_rank])
    dist.destroy_process_group()
