"""Every rank evaluates all of it, or divides by what it has seen itself."""
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def evaluate(model, loader, local_rank):
    correct = 0
    with torch.no_grad():
        for images, target in loader:
            correct += (model(images.to(local_rank)).argmax(1) == target.to(local_rank)).sum().item()
    return correct / len(loader.dataset)


def main(model, train_set, val_set, local_rank):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=64, sampler=sampler, num_workers=2, pin_memory=True)
    val_loader = DataLoader(val_set, batch_size=64)
    print(evaluate(model.module, val_loader, local_rank))
    total = 0
    for batch in train_loader:
        total += model(batch.to(local_rank)).item()
    print(total / len(train_loader), total / len(sampler))
