import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, local_rank):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")  # expect: DDL140
    for images in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(images.to(local_rank))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
