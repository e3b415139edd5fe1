"""Divided in one branch or the other, never in both; accumulation steps divide something else."""
import torch.distributed as dist
from torch.utils.data import DataLoader


def loader(args, dataset, sampler):
    world_size = dist.get_world_size()
    if args.spawn:
        batch_size = int(args.batch_size / world_size)
    else:
        batch_size = int(args.batch_size / dist.get_world_size())
    steps = args.total_batch // (batch_size * world_size)
    micro = batch_size // steps
    return DataLoader(dataset, batch_size=micro, sampler=sampler)
