import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, local_rank):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, target in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images.to(local_rank)), target.to(local_rank))
        loss = loss / dist.get_world_size()  # expect: DDL146
        loss.backward()
        optimizer.step()
