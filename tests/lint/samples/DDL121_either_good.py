import torch.distributed as dist
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data.distributed import DistributedSampler


def loaders(train_set, val_set, distributed):
    sampler = DistributedSampler(train_set, shuffle=True) if distributed else None
    yield DataLoader(train_set, batch_size=32, shuffle=sampler is None, sampler=sampler)
    yield DataLoader(train_set, batch_size=32, shuffle=False, sampler=RandomSampler(train_set))
    yield DataLoader(val_set, batch_size=32, shuffle=True, sampler=None)
    yield DataLoader(val_set, batch_size=32, shuffle=not dist.is_initialized(), sampler=sampler)
