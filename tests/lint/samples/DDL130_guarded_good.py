import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def is_main_process():
    return dist.get_rank() == 0


def save_checkpoint(model, path):
    torch.save(model.module.state_dict(), path)


def save_early(model, path):
    if not is_main_process():
        return
    torch.save(model.module.state_dict(), path)


def train(model, loader, args, local_rank):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    rank = int(os.environ["RANK"])
    for epoch, batch in enumerate(loader):
        model(batch.to(local_rank)).backward()
        if rank == 0 and epoch % 5 == 0:
            save_checkpoint(model, f"{epoch}.pt")
        if args.master:
            torch.save(model.module.state_dict(), "best.pt")
        if is_main_process():
            torch.save(model.module.state_dict(), "last.pt")
        torch.save(torch.get_rng_state(), f"rng_state_{rank}.pt")
        shard = os.path.join("out", "optimizer-%d.pt" % dist.get_rank())
        torch.save(model.module.state_dict(), shard)
