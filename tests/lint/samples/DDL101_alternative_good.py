import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def wrapped(model, local_rank, distributed):
    if distributed:
        return DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])
    return nn.DataParallel(model).cuda()


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    model = wrapped(nn.Linear(8, 2), local_rank, distributed=True)
    model.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
