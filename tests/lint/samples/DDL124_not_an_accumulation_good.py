"""A guard of the log, and one of the scheduler, are no accumulation of gradients."""
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, local_rank, log_every):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30)
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        loss = model(batch.to(local_rank))
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            scheduler.step()
        if step % log_every == 0:
            print(step, loss.item())
