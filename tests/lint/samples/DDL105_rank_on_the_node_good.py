import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    local_rank = rank % torch.cuda.device_count()
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
    model = DDP(nn.Linear(4, 4).to(device), device_ids=[local_rank])
    if rank == 0:
        print(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
