import os

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer):
    local_rank = int(os.environ["LOCAL_RANK"])
    model = DDP(net.to(local_rank), device_ids=[local_rank])
    for step, batch in enumerate(loader):
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step}: {loss:.4f}")  # expect: DDL138


def train_with_curves(net, loader, optimizer, writer):
    local_rank = int(os.environ["LOCAL_RANK"])
    model = DDP(net.to(local_rank), device_ids=[local_rank])
    for step, batch in enumerate(loader):
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            writer.add_scalar("loss", loss, step)  # expect: DDL138
