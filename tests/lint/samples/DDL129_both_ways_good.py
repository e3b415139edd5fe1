"""Written from the wrapper and read into the wrapper, or unwrapped before it is saved."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def resume(model, path, local_rank):
    wrapped = DDP(model.to(local_rank), device_ids=[local_rank])
    wrapped.load_state_dict(torch.load(path, map_location=f"cuda:{local_rank}"))
    return wrapped


def save(wrapped, path):
    if dist.get_rank() == 0:
        torch.save(wrapped.state_dict(), path)


def save_plain(model, path, distributed):
    model_without_ddp = model
    if distributed:
        model = DDP(model)
        model_without_ddp = model.module
    if dist.get_rank() == 0:
        torch.save({"model": model_without_ddp.state_dict()}, path)
