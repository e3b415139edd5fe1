"""The wrapped model computes the loss itself: DDP moves all it is given."""
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


def train(model, dataset, sampler, local_rank, move):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=2, pin_memory=True)
    for images, target in loader:
        model(images, target).backward()
    for images, target in loader:
        images, target = move(images, target)
        F.cross_entropy(model(images), target).backward()


def on_the_cpu(model, dataset, sampler):
    ddp = DDP(model)
    for images, target in DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=2, pin_memory=True):
        F.cross_entropy(ddp(images), target).backward()
