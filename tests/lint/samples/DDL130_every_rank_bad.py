import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, local_rank, epochs):
    dist.init_process_group("nccl")
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            model(batch.to(local_rank)).backward()
            optimizer.step()
        torch.save(model.module.state_dict(), f"checkpoint_{epoch}.pt")  # expect: DDL130
