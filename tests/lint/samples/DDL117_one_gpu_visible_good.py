import os

os.environ["CUDA_VISIBLE_DEVICES"] = str(int(os.environ["LOCAL_RANK"]) + 4)

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

torch.cuda.set_device(0)
dist.init_process_group("nccl")
model = DDP(torch.nn.Linear(4, 4).cuda())
dist.destroy_process_group()
