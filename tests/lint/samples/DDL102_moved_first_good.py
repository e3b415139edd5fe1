import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, model, device):
        self.model = DDP(model.to(device), device_ids=[device])
        self.device = device

    def train(self, batch):
        self.model.to(torch.float32)  # a type, no device
        batch = batch.to(self.device)
        return self.model(batch)


def main(batch):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    Trainer(nn.Linear(4, 4), local_rank).train(batch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(torch.ones(4))
