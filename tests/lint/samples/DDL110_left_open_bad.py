import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")  # expect: DDL110
model = DistributedDataParallel(nn.Linear(4, 4).to(local_rank), device_ids=[local_rank])
model.train()
