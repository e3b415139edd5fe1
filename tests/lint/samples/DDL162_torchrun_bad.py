import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def setup():
    os.environ["MASTER_ADDR"] = "localhost"  # expect: DDL162
    os.environ["MASTER_PORT"] = "12355"  # expect: DDL162
    dist.init_process_group("nccl")


if __name__ == "__main__":
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    setup()
    model = DDP(torch.nn.Linear(8, 2).to(local_rank), device_ids=[local_rank])
    dist.destroy_process_group()
