import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self):
        local_rank = int(os.environ["LOCAL_RANK"])
        dist.init_process_group(backend="gloo")  # expect: DDL116
        torch.cuda.set_device(local_rank)
        self.model = DDP(nn.Linear(1, 1).to(local_rank), device_ids=[local_rank])


Trainer()
dist.destroy_process_group()
