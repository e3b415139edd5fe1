from contextlib import nullcontext

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, local_rank, accumulation):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for i, (inputs, target) in enumerate(loader):
        last = (i + 1) % accumulation == 0
        with nullcontext() if last else model.no_sync():
            loss = torch.nn.functional.cross_entropy(model(inputs.to(local_rank)), target.to(local_rank))
            (loss / accumulation).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
