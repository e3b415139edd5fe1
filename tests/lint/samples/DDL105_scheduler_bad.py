import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
torch.cuda.set_device(rank)  # expect: DDL105
dist.init_process_group("nccl", rank=rank, world_size=size)
model = DDP(torch.nn.Linear(4, 4).cuda())
dist.destroy_process_group()
