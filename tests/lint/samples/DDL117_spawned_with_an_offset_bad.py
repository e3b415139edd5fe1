import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def work(rank, size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29500"
    dist.init_process_group("nccl", rank=rank, world_size=size)  # expect: DDL117
    gpu = (rank + 1) % torch.cuda.device_count()
    model = DDP(torch.nn.Linear(4, 4).to(gpu), device_ids=[gpu])
    dist.destroy_process_group()
    return model


if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
