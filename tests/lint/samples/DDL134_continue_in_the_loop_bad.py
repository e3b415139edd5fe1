import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, rank):
        self.rank = rank
        self.model = DistributedDataParallel(model.cuda(rank), device_ids=[rank])

    def epoch(self, loader, optimizer):
        for step, batch in enumerate(loader):
            if self.rank == 0 and step % 100 == 0:
                continue  # expect: DDL134
            optimizer.zero_grad()
            self.model(batch.cuda(self.rank)).backward()
            optimizer.step()

    def check(self, path):
        if self.rank == 0 and not path.exists():
            sys.exit()  # expect: DDL134
        dist.barrier()
