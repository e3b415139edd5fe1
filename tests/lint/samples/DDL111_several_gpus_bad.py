import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
first = DistributedDataParallel(nn.Linear(4, 4).to(local_rank), device_ids=[0, 1])  # expect: DDL111
gpus = list(range(torch.cuda.device_count()))
second = DistributedDataParallel(nn.Linear(4, 4).cuda(), device_ids=gpus)  # expect: DDL111
third = DistributedDataParallel(  # expect: DDL111
    nn.Linear(4, 4).to(local_rank), device_ids=[local_rank], output_device=0
)
dist.destroy_process_group()
