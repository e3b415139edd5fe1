import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build(local_rank):
    model = nn.Linear(4, 4).to(local_rank)
    return DistributedDataParallel(model, device_ids=[local_rank])  # expect: DDL108


if __name__ == "__main__":
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    build(local_rank).train()
