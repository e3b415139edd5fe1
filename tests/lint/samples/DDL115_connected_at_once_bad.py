import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
os.environ["NCCL_SOCKET_NTHREADS"] = "4"  # expect: DDL115
model = DistributedDataParallel(nn.Linear(4, 4).to(device), device_ids=[device])
dist.destroy_process_group()
