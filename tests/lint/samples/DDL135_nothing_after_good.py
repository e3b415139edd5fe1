"""A condition on the data after which no rank waits for another, and a reduced value in its own function."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def reduce_mean(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()


def train(model, loader, optimizer, local_rank, best):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        loss = model(batch.to(local_rank))
        mean = reduce_mean(loss)
        if torch.isnan(mean):
            break
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and loss.item() < best:
            best = loss.item()
    return best
