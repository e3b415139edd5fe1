import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def worker(rank, size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    os.environ["LOCAL_RANK"] = str(rank)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=size)
    model = DDP(torch.nn.Linear(8, 2).to(rank), device_ids=[rank])
    dist.destroy_process_group()
    return model


if __name__ == "__main__":
    mp.spawn(worker, args=(2,), nprocs=2)
