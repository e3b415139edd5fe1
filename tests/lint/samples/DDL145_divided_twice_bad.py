import argparse

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=256, help="of all GPUs together")


def loader(args, dataset):
    world_size = dist.get_world_size()
    args.batch_size = args.batch_size // world_size
    sampler = DistributedSampler(dataset)
    return DataLoader(dataset, batch_size=args.batch_size // world_size, sampler=sampler)  # expect: DDL145
