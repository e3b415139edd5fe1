import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def loaders(train_set, rank, world):
    sampler = DistributedSampler(train_set, num_replicas=world, rank=rank)
    return sampler, DataLoader(train_set, batch_size=32, shuffle=True, sampler=sampler)  # expect: DDL121


def train(model, train_set, epochs):
    sampler, loader = loaders(train_set, dist.get_rank(), dist.get_world_size())
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, target in loader:
            model(images.cuda(), target.cuda()).backward()
