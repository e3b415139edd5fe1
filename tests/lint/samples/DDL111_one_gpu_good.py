import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
device = torch.device("cuda", local_rank)
first = DistributedDataParallel(nn.Linear(4, 4).to(device), device_ids=[local_rank], output_device=local_rank)
second = DistributedDataParallel(nn.Linear(4, 4).to(device), device_ids=[device], output_device=device)
third = DistributedDataParallel(nn.Linear(4, 4).to(device))
dist.destroy_process_group()
