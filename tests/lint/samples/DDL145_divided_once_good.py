import torch.distributed as dist
from torch.utils.data import DataLoader


def loaders(args, dataset, sampler, val_set, val_sampler):
    world_size = dist.get_world_size()
    batch_size = args.batch_size // world_size
    workers = args.workers // world_size
    train = DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=workers)
    val = DataLoader(val_set, batch_size=args.val_batch_size // world_size, sampler=val_sampler)
    return train, val
