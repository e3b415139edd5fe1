import os

import torch
import torch.distributed as dist
from torch import nn

local_rank = int(os.environ["LOCAL_RANK"])
model = nn.Linear(4, 4)
if torch.cuda.is_available():
    torch.cuda.set_device(local_rank)
    model = model.cuda()
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
model = nn.parallel.DistributedDataParallel(model)
dist.destroy_process_group()
