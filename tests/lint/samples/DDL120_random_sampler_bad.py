import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, RandomSampler


def prepare(dataset):
    model = DDP(torch.nn.Linear(2, 2))
    train_loader = DataLoader(dataset, batch_size=8, sampler=RandomSampler(dataset))  # expect: DDL120
    return model, train_loader
