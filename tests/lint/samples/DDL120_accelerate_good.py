"""Accelerate shards the loaders that it prepares."""
import torch
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def train(model, dataset, epochs):
    accelerator = Accelerator()
    optimizer = torch.optim.AdamW(model.parameters())
    train_loader = DataLoader(dataset, shuffle=True, batch_size=16)
    model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)
    assert isinstance(model, DistributedDataParallel)
    for _ in range(epochs):
        for batch in train_loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
