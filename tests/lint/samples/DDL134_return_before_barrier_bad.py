import torch
import torch.distributed as dist


def save(model, path):
    if dist.get_rank() != 0:
        return  # expect: DDL134
    torch.save(model.module.state_dict(), path)
    dist.barrier()


def stop_early(model, loader, rank, patience):
    for epoch in range(100):
        worse = 0
        for batch in loader:
            total = model(batch).detach()
            dist.all_reduce(total)
            worse += 1
        if rank == 0:
            if worse > patience:
                break  # expect: DDL134
