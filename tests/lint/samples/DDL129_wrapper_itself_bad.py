import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(2, 2))
if dist.get_rank() == 0:
    torch.save(model, "model.pt")  # expect: DDL129
dist.destroy_process_group()
