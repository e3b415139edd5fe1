import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, optimizer, local_rank):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    for step, (inputs, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs.to(local_rank)), target.to(local_rank))
        total = loss.detach().clone()
        dist.all_reduce(total)
        if not torch.isfinite(total):
            continue
        bad = torch.isnan(loss).float()
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad > 0:
            continue
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            dist.all_reduce(total)
        if not torch.isfinite(loss):
            sys.exit(1)
