import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


def main(args, model, dataset, sampler, local_rank):
    world_size = dist.get_world_size()
    batch_size = args.batch_size // world_size
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=4, pin_memory=True)
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * world_size)  # expect: DDL149
    return loader, optimizer
