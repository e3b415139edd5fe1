import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def rank():
    return int(os.environ.get("RANK", 0))


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())  # expect: DDL105
    device = torch.device(f"cuda:{rank()}")  # expect: DDL105
    model = DDP(nn.Linear(4, 4).to(device), device_ids=[int(os.environ["RANK"])])  # expect: DDL105
    model.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
