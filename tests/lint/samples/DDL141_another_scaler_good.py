"""Objects that are called scaler and have a step of their own; a scaler that another function updates."""
from mylib import NativeScaler, finish
import torch


def train(model, loader, optimizer):
    scaler = NativeScaler()
    mine = torch.amp.GradScaler("cuda")
    for batch in loader:
        loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        mine.step(optimizer)
        finish(mine)
