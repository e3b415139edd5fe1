import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.ReLU())

    def forward(self, x):
        return self.body(x)


def wrap(rank):
    options = {"device_ids": [rank], "find_unused_parameters": True}
    return DistributedDataParallel(Net(128).cuda(rank), **options)  # expect: DDL127
