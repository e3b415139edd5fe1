import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Linear(width, width)
        self.left = nn.Linear(width, 2)  # expect: DDL128
        self.right = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))  # expect: DDL128

    def forward(self, x, task):
        x = self.body(x)
        return self.left(x) if task == "left" else self.right(x)


def wrap(rank):
    return DistributedDataParallel(TwoHeads(128).cuda(rank), **dict(device_ids=[rank]))
