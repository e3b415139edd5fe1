import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, local_rank, epochs):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            model(batch.to(local_rank)).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), f"epoch{epoch}.pt")  # expect: DDL129
