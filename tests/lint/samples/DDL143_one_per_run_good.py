"""One scaler for each run of a sweep, and one for each of several models."""
import torch


def run(model, optimizer, loader):
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def sweep(models, optimizers, loader):
    scalers = []
    for _ in models:
        scalers.append(torch.amp.GradScaler("cuda"))
    for model, optimizer in zip(models, optimizers):
        run(model, optimizer, loader)
    return scalers
