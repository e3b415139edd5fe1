"""Conditions that hold on every rank, a raise that ends the job, a loop of one rank alone."""
import torch.distributed as dist


def check(path, world_size, rank, names):
    if world_size == 1:
        return
    if rank >= world_size:
        raise ValueError(rank)
    if rank == 0:
        for name in names:
            if name.startswith("."):
                continue
            print(name)
    dist.barrier()


def is_main(rank):
    if rank == 0:
        return True
    return False


def setup(rank):
    if rank == -1:
        return
    dist.init_process_group("nccl", rank=rank)
    dist.barrier()
