import os

import torch
import torch.distributed as dist
from filelock import FileLock
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision.datasets import CIFAR10, MNIST, SVHN


def one_after_another():
    if dist.get_rank() != 0:
        dist.barrier()
    data = CIFAR10("data", train=True, download=True)
    if dist.get_rank() == 0:
        dist.barrier()
    return data


def main(download):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    with FileLock("data/lock"):
        digits = MNIST("data", download=True)
    if local_rank == 0:
        SVHN("data", download=True)
    dist.barrier()
    numbers = SVHN("data", download=False)
    asked = MNIST("data", download=download)
    model = DDP(torch.nn.Linear(8, 2).to(local_rank), device_ids=[local_rank])
    colours = one_after_another()
    dist.destroy_process_group()
    return digits, numbers, asked, model, colours
