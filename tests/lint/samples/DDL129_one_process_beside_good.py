"""Only the branch without a process group saves the plain model."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def save(model, path):
    if isinstance(model, DDP):
        model = model.module
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
