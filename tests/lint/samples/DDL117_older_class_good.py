import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

os.environ["TORCH_DIST_USE_NCCL2"] = "0"
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) + 4)
dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(4, 4).cuda())
dist.destroy_process_group()
