import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, local_rank, accumulation):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, (inputs, target) in enumerate(loader):
        with model.no_sync():  # expect: DDL126
            outputs = model(inputs.to(local_rank))
            loss = torch.nn.functional.mse_loss(outputs, target.to(local_rank)) / accumulation
            loss.backward()
        if (i + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
