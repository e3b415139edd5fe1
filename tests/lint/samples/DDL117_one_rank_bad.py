import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.cuda.set_device(1)
dist.init_process_group("nccl", rank=0, world_size=1, init_method="tcp://127.0.0.1:29511")  # expect: DDL117
wrapped = DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
dist.destroy_process_group()
