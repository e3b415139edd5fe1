import os

import torch
import torch.distributed as dist

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("gloo")
os.environ["NCCL_SOCKET_NTHREADS"] = "4"
gpus = dist.new_group(backend="nccl")
dist.all_reduce(torch.ones(1, device="cuda"), group=gpus)
dist.destroy_process_group()
