import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

local_rank = int(os.environ.get("LOCAL_RANK", -1))
model = nn.Linear(4, 4)
if local_rank == -1:
    model = model.to("cuda")
else:
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    model = DDP(model.to("cuda"), device_ids=[local_rank])
table = torch.zeros(1024, device="cuda")
model(table[:4])
dist.destroy_process_group()
