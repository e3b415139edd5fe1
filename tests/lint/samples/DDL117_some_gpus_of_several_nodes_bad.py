import argparse

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def train(gpu, args):
    rank = args.node * args.gpus + gpu
    dist.init_process_group("nccl", rank=rank, world_size=args.nodes * args.gpus)  # expect: DDL117
    torch.cuda.set_device(gpu)
    model = DDP(torch.nn.Linear(4, 4).cuda(gpu), device_ids=[gpu])
    dist.destroy_process_group()
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--gpus", type=int, default=1)
    args = parser.parse_args()
    mp.spawn(train, nprocs=args.gpus, args=(args,))


if __name__ == "__main__":
    main()
