"""The mean is taken by hand after the last micro-step, inside no_sync on purpose."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, local_rank, accumulation):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i, inputs in enumerate(loader):
        with model.no_sync():
            (model(inputs.to(local_rank)).mean() / accumulation).backward()
        if (i + 1) % accumulation == 0:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            optimizer.step()
            optimizer.zero_grad()
