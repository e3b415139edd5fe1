"""Some parameters stand outside the wrapper, or no_sync() holds DDP's own reduction back."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, temperature, loader, optimizer, local_rank, norm):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    for batch in loader:
        optimizer.zero_grad()
        with model.no_sync():
            (model(batch.to(local_rank)) * temperature).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        dist.all_reduce(temperature.grad)
        dist.all_reduce(norm)
        optimizer.step()
