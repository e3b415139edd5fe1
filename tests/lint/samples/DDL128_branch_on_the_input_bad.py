import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Linear(width, width)
        self.left = nn.Linear(width, 2)  # expect: DDL128
        self.right = nn.Linear(width, 2)  # expect: DDL128

    def forward(self, x, task):
        x = torch.relu(self.body(x))
        if task == "left":
            return self.left(x)
        return self.right(x)


def wrap(rank):
    network = TwoHeads(128)
    network = network.cuda(rank)
    return DistributedDataParallel(network, device_ids=[rank])
