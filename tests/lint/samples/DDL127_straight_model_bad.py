import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Linear(5408, 10)

    def forward(self, x):
        x = self.features(x)
        return self.fc(torch.flatten(x, 1))


def wrap(local_rank):
    model = Net().to(local_rank)
    return DDP(model, device_ids=[local_rank], find_unused_parameters=True)  # expect: DDL127
