import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Pipeline:
    def __init__(self, model, device, world_size=1, local_rank=0):
        self.model = model.to(device)
        if world_size > 1:
            self.model = DDP(self.model, device_ids=[local_rank])
            dist.barrier(device_ids=[local_rank])
