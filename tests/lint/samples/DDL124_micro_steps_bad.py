import os

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, get_batch, max_iters, gradient_accumulation_steps=8):
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    model = DDP(model.to(device), device_ids=[int(os.environ["LOCAL_RANK"])])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(max_iters):
        for _micro_step in range(gradient_accumulation_steps):
            x, y = get_batch("train")
            _, loss = model(x.to(device), y.to(device))
            (loss / gradient_accumulation_steps).backward()  # expect: DDL124
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
