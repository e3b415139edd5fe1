import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def train(model, dataset, local_rank, epochs):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)  # expect: DDL137
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, target in loader:
            optimizer.zero_grad()
            model(images.to(local_rank), target.to(local_rank)).backward()
            optimizer.step()
