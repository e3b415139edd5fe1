import torch
import torch.distributed as dist


def save(model, path):
    dist.barrier()
    if dist.get_rank() != 0:
        return
    torch.save(model.module.state_dict(), path)


def share(stop, rank):
    flag = torch.tensor([int(stop and rank == 0)], device=rank)
    dist.broadcast(flag, src=0)
    return bool(flag.item())


def train(model, loader, rank, epochs):
    for epoch in range(epochs):
        for batch in loader:
            model(batch).backward()
        if share(epoch > 3, rank):
            break
        if rank != 0:
            continue
        print("epoch", epoch)


def gathered(tensor, rank, world):
    if rank != 0:
        dist.gather(tensor, dst=0)
        return None
    parts = [torch.empty_like(tensor) for _ in range(world)]
    dist.gather(tensor, gather_list=parts, dst=0)
    return parts
