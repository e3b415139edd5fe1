import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, loader):
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.is_main = self.rank == 0
        self.model = DistributedDataParallel(model.cuda(self.local_rank), device_ids=[self.local_rank])
        self.loader = loader

    def train(self, optimizer, probe):
        for batch in self.loader:
            optimizer.zero_grad()
            self.model(batch.cuda(self.local_rank)).backward()
            optimizer.step()
        if self.is_main:
            score = self.model(probe.cuda(self.local_rank))
            score.sum().backward()  # expect: DDL133
        total = torch.zeros(1, device=self.local_rank)
        if self.rank != 0:
            dist.broadcast(total, src=0)  # expect: DDL133
