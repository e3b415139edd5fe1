"""A loader of another library has its own meaning of shuffle."""
from mylib.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def loader(dataset, epochs):
    sampler = DistributedSampler(dataset)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        yield DataLoader(dataset, shuffle=True, sampler=sampler)
