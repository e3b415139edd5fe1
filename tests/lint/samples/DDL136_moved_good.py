"""DDP moves its inputs to the device of device_ids; targets are moved by hand, or by a prefetcher."""
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


def train(model, dataset, sampler, local_rank, prefetch):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=2, pin_memory=True)
    for images, target in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), target.to(local_rank))
        loss.backward()
        optimizer.step()
    for images, target in prefetch(loader):
        F.cross_entropy(model(images), target).backward()
    for batch in loader:
        images, target = (t.to(local_rank) for t in batch)
        F.cross_entropy(model(images), target).backward()
    for images, target in loader:
        images, target = images.cuda(), target.cuda()
        F.cross_entropy(model(images), target).backward()
