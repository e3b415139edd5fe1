import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(64, 64)
        self.auxiliary_head = nn.Linear(64, 10)  # expect: DDL128
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(torch.relu(self.encoder(x)))


def train(loader, local_rank):
    model = DDP(Net().to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(local_rank)), y.to(local_rank)).backward()
        optimizer.step()
