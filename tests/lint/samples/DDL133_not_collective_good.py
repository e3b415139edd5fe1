"""What one rank alone may do: the module without its wrapper, a gathered value, a world of one."""
import contextlib

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


@contextlib.contextmanager
def main_process_first(local_rank):
    if local_rank > 0:
        dist.barrier()
    yield
    if local_rank == 0:
        dist.barrier()


def train(model, loader, writer, rank, world_size, distributed):
    ddp = DDP(model.to(rank), device_ids=[rank])
    for step, batch in enumerate(loader):
        loss = ddp(batch.to(rank))
        loss.backward()
        total = loss.detach().clone()
        if world_size > 1:
            dist.all_reduce(total)
        if distributed:
            dist.barrier()
        if rank == 0 and step % 100 == 0:
            writer.add_scalar("loss", total.item() / world_size, step)
            with torch.no_grad():
                ddp.module(batch.to(rank))
                model(batch.to(rank))
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
    if rank == 0:
        print("done")
    dist.barrier()
