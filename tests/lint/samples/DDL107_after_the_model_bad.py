import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ["LOCAL_RANK"])
table = torch.zeros(1024, device="cuda")
dist.init_process_group("nccl")
torch.cuda.set_device(local_rank)  # expect: DDL107
model = DDP(nn.Linear(4, 4).cuda(), device_ids=[local_rank])
model(table[:4])
dist.destroy_process_group()
