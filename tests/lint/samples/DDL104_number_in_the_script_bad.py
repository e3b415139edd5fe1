import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def main(args):
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)  # expect: DDL104
    model = nn.Linear(4, 4).to(device)  # expect: DDL104
    if args.distributed:
        model = DDP(model, device_ids=[0])  # expect: DDL104
    dist.destroy_process_group()
    return model
