import torch
import torch.distributed as dist
from torch.cuda.amp import GradScaler, autocast


def train(model, loader, optimizer):
    dist.init_process_group("nccl")
    scaler = GradScaler()  # expect: DDL113
    for batch in loader:
        with autocast():  # expect: DDL113
            loss = model(batch).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    with torch.cuda.amp.autocast():
        model(batch)
