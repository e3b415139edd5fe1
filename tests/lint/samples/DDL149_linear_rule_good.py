"""The batch of a rank stays, so the global batch grows with the world, and the rate with it."""
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader


def main(args, model, dataset, sampler):
    lr = args.lr * dist.get_world_size()
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    return loader, torch.optim.SGD(model.parameters(), lr=lr)
