import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.auxiliary = nn.Sequential(nn.Linear(width, 2))  # expect: DDL128

    def forward(self, x):
        return self.body(x)


def wrap(rank):
    return DistributedDataParallel(Net(128).cuda(rank), device_ids=[rank])
