import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 16)
        self.left = nn.Linear(16, 2)
        self.right = nn.Linear(16, 2)

    def forward(self, x, task):
        x = torch.relu(self.body(x))
        if task == "left":
            return self.left(x)
        return self.right(x)


def wrap(local_rank):
    return DDP(Net().to(local_rank), device_ids=[local_rank], find_unused_parameters=True)
