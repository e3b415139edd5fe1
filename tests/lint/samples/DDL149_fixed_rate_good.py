"""The global batch is fixed, and so is the rate; workers are divided too."""
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def main(args, model, dataset, sampler):
    world_size = dist.get_world_size()
    batch_size = args.batch_size // world_size
    effective = batch_size * world_size
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
    return loader, torch.optim.SGD(model.parameters(), lr=args.lr * effective / 256)
