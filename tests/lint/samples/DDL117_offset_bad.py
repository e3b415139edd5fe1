import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
gpu = local_rank + 4
torch.cuda.set_device(gpu)
dist.init_process_group("nccl")  # expect: DDL117
model = DDP(torch.nn.Linear(4, 4).cuda(), device_ids=[gpu])
dist.destroy_process_group()
