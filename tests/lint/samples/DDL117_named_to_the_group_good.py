import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) + 4)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
model = DDP(torch.nn.Linear(4, 4).to(device), device_ids=[device])
dist.destroy_process_group()
