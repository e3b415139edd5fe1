import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, width, deep):
        super().__init__()
        self.deep = deep
        self.body = nn.Linear(width, width)
        self.left = nn.Linear(width, 2)
        self.right = nn.Sequential(nn.Linear(width, 2))
        self.activation = nn.Sequential(nn.ReLU(), nn.Dropout(0.1))

    def forward(self, x, task, mask=None):
        x = self.body(x) if self.deep else x
        x = self.activation(x) if task == "left" else x
        x = x if mask is None else self.body(x * mask)
        return self.left(x) + self.right(x) if task == "left" else self.right(x) - self.left(x)


class Other(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(width, 2))
        self.right = nn.Sequential(nn.Linear(width, 2))

    def forward(self, x, task):
        return self.left(x) if task == "left" else self.right(x)


def wrap(rank):
    options = {"device_ids": [rank], "find_unused_parameters": True}
    net = DistributedDataParallel(Net(128, True).cuda(rank), device_ids=[rank])
    return net, DistributedDataParallel(Other(128).cuda(rank), **options)
