import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def work(rank, args):
    gpus = [int(gpu) for gpu in args.gpus.split(",")]
    torch.cuda.set_device(gpus[rank])
    dist.init_process_group("nccl", args.url, rank=rank, world_size=len(gpus))  # expect: DDL117
    model = DDP(torch.nn.Linear(4, 4).cuda())
    dist.destroy_process_group()
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", default="0,1")
    parser.add_argument("--url", default="tcp://localhost:29500")
    arguments = parser.parse_args()
    mp.spawn(work, args=(arguments,), nprocs=len(arguments.gpus.split(",")))
