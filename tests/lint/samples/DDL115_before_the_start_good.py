import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

os.environ.setdefault("MASTER_PORT", "29501")
os.environ["NCCL_SOCKET_NTHREADS"] = "4"
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
model = DistributedDataParallel(nn.Linear(4, 4).to(local_rank), device_ids=[local_rank])
os.environ["TOKENIZERS_PARALLELISM"] = "false"
dist.destroy_process_group()
