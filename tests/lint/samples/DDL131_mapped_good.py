import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def resume(model, path, local_rank, kwargs):
    dist.init_process_group("nccl")
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state)
    state = torch.load(path, f"cuda:{local_rank}")
    model.load_state_dict(torch.load(path, **kwargs))
    return DDP(model.cuda(local_rank), device_ids=[local_rank])
