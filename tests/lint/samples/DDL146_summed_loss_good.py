"""A loss that is a sum over the global batch, and a mean by hand without DDP."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, optimizer, local_rank, world_size):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    for batch, target in loader:
        tokens = torch.tensor(target.numel(), device=local_rank)
        dist.all_reduce(tokens)
        loss = torch.nn.functional.cross_entropy(model(batch), target.to(local_rank), reduction="sum")
        loss = loss * world_size / tokens
        loss.backward()
        optimizer.step()
