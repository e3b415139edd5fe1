import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

GPUS = [0, 2, 1, 3]


class Trainer:
    def __init__(self, model):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        dist.init_process_group(backend="nccl" if torch.cuda.is_available() else "gloo")  # expect: DDL117
        self.device = torch.device("cuda", GPUS[self.local_rank])
        torch.cuda.set_device(self.device)
        self.model = DDP(model.to(self.device), device_ids=[self.device])


class Reversed:
    def __init__(self, model):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        dist.init_process_group()  # expect: DDL117
        torch.cuda.set_device(torch.cuda.device_count() - 1 - self.local_rank)
        self.model = DDP(model.cuda())


if __name__ == "__main__":
    Trainer(torch.nn.Linear(4, 4))
    dist.destroy_process_group()
