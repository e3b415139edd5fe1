import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, local_rank):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    running = 0.0
    for images, target in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images.to(local_rank)), target.to(local_rank))
        loss.backward()
        optimizer.step()
        running += loss.item()  # expect: DDL138
    return running
