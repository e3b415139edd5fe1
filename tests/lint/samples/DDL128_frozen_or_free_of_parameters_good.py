import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 16)
        self.teacher = nn.Linear(16, 16)
        self.teacher.requires_grad_(False)
        self.dropout = nn.Dropout(0.1)
        self.loss = nn.CrossEntropyLoss()
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        x = self.body(x)
        if self.training:
            x = self.dropout(x)
        return x


class Mixin(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Linear(4, 4)
        self.layer2 = nn.Linear(4, 4)

    def forward(self, x):
        for name in ("layer1", "layer2"):
            x = getattr(self, name)(x)
        return x


def wrap(rank):
    return DDP(Net().to(rank), device_ids=[rank]), DDP(Mixin().to(rank), device_ids=[rank])
