import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)  # expect: DDL147
        param.grad.data /= size


def train(model, loader, local_rank):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        optimizer.zero_grad()
        model(batch.to(local_rank)).backward()
        average_gradients(model)
        optimizer.step()
