import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    args.distributed = "WORLD_SIZE" in os.environ
    if args.distributed:
        args.gpu = int(os.environ["LOCAL_RANK"])
        dist.init_process_group("nccl")
    else:
        torch.cuda.set_device(0)
    torch.cuda.set_device(args.gpu)
    model = nn.Linear(4, 4).cuda(args.gpu)
    if args.distributed:
        model = DDP(model, device_ids=[args.gpu])
    elif dist.is_available():
        model = model.to("cuda:0")
    model.train()
    if args.distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
