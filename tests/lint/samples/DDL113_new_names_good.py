import torch
import torch.distributed as dist
from torch.amp import GradScaler


def train(model, loader, optimizer):
    dist.init_process_group("nccl")
    scaler = GradScaler("cuda")
    for batch in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
