"""The mean of the gradients by hand, which is what replaces DDP here."""
import torch
import torch.distributed as dist


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad.data, op=dist.ReduceOp.SUM)
        param.grad.data /= size


def train(model, loader, optimizer):
    for batch in loader:
        optimizer.zero_grad()
        model(batch.cuda()).backward()
        average_gradients(model)
        optimizer.step()
