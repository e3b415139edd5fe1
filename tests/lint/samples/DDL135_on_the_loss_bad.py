import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, optimizer, local_rank, threshold):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    for inputs, target in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs.to(local_rank)), target.to(local_rank))
        if torch.isnan(loss):
            continue  # expect: DDL135
        loss.backward()
        optimizer.step()
        if loss.item() > threshold:  # expect: DDL138
            dist.all_reduce(loss)  # expect: DDL135
