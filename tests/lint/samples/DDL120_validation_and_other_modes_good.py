"""A validation loader for every rank is a choice, and shuffle may follow the sampler."""
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def build(train_set, val_set, test_set, distributed, batch_size):
    if distributed:
        train_sampler = DistributedSampler(train_set)
    else:
        train_sampler = None
    train = DataLoader(train_set, batch_size, shuffle=(train_sampler is None), sampler=train_sampler, num_workers=2, pin_memory=True)
    val_loader = DataLoader(val_set, batch_size, shuffle=False)
    test = DataLoader(test_set, batch_size=batch_size)
    return train_sampler, train, val_loader, test


def run(model, train_set, val_set, test_set, local_rank, epochs):
    dist.init_process_group("nccl")
    model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
    sampler, train, _, _ = build(train_set, val_set, test_set, True, 32)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch in train:
            model(batch.to(local_rank)).backward()
