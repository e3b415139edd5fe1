import os

import torch
import torch.distributed as dist
from torch import nn

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group(backend="gloo")  # expect: DDL116
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).cuda(), device_ids=[local_rank])
dist.destroy_process_group()
