import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, device):
        self.model = DDP(model)
        self.device = device

    def train(self):
        self.model.to(self.device)  # expect: DDL102
        self.model.train()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    Trainer(nn.Linear(4, 4), f"cuda:{local_rank}").train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
