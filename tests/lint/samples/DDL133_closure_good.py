import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def step(model, loader, optimizer, rank, signal):
    def closure():
        total = torch.zeros((), device=signal.device)
        for images in loader:
            total += model(images.to(signal.device)).sum()
        dist.all_reduce(total)
        return total

    if rank == 0:
        optimizer.step(closure)
        signal.fill_(0)
        dist.broadcast(signal, src=0)
    else:
        while True:
            dist.broadcast(signal, src=0)
            if signal.item() == 0:
                break
            closure()


def main(loader, net):
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    model = DDP(net.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.LBFGS(model.parameters())
    step(model, loader, optimizer, rank, torch.ones((), device=local_rank))
    dist.destroy_process_group()
