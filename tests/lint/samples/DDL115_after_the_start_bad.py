import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
os.environ["MASTER_PORT"] = "29501"  # expect: DDL115
os.environ["NCCL_DEBUG"] = "WARN"  # expect: DDL115
model = DistributedDataParallel(nn.Linear(4, 4).to(local_rank), device_ids=[local_rank])
os.environ["NCCL_SOCKET_NTHREADS"] = "4"  # expect: DDL115
dist.destroy_process_group()
