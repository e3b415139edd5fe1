import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)

    def loss(self, images, labels):
        return nn.functional.cross_entropy(self.linear(images), labels)


class Trainer:
    def __init__(self, local_rank):
        self.local_rank = local_rank
        self.model = DDP(Scorer().to(local_rank), device_ids=[local_rank])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, loader):
        for images, labels in loader:
            images, labels = images.to(self.local_rank), labels.to(self.local_rank)
            self.optimizer.zero_grad()
            loss = self.model.module.loss(images, labels)  # expect: DDL166
            loss.backward()
            self.optimizer.step()


if __name__ == "__main__":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    Trainer(int(os.environ["LOCAL_RANK"])).train(make_loader())
    dist.destroy_process_group()
