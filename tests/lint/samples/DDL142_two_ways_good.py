"""With a scaler unscaled, without one clipped as it is."""
import torch


def step(model, optimizer, loss, scaler=None):
    if scaler is None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def main(model, optimizer, losses):
    scaler = torch.amp.GradScaler("cuda")
    for loss in losses:
        step(model, optimizer, loss, scaler)
