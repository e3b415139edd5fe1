import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    gpu = int(os.environ["SLURM_LOCALID"])
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl", rank=rank, world_size=size)  # expect: DDL117
    model = DDP(torch.nn.Linear(4, 4).to(gpu), device_ids=[gpu])
    dist.destroy_process_group()
    return model


if __name__ == "__main__":
    main()
