import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


def train(model, dataset, sampler, local_rank):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = torch.nn.CrossEntropyLoss()
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=2, pin_memory=True)
    for images, target in loader:
        images = images.to(local_rank, non_blocking=True)
        optimizer.zero_grad()
        loss = criterion(model(images), target)  # expect: DDL136
        loss.backward()
        optimizer.step()
