import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def save_checkpoint(model, optimizer, epoch, folder):
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, os.path.join(folder, "last.pth"))  # expect: DDL130


def main(model, loader, folder, epochs):
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            model(batch.to(local_rank)).backward()
            optimizer.step()
        if epoch % 10 == 0:
            save_checkpoint(model, optimizer, epoch, folder)
