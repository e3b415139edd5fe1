"""Loaders that give every rank its own part without a DistributedSampler."""
import os

import datasets
import torch
import torch.distributed as dist
import webdataset as wds
from datasets.distributed import split_dataset_by_node
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, Subset


class Lines(IterableDataset):
    def __init__(self, path, rank, world_size):
        self.path, self.rank, self.world_size = path, rank, world_size

    def __iter__(self):
        with open(self.path) as lines:
            for number, line in enumerate(lines):
                if number % self.world_size == self.rank:
                    yield line


def loaders(dataset, path, rank, world_size, sampler, batches, kwargs):
    streamed = split_dataset_by_node(datasets.load_dataset("c4", streaming=True), rank, world_size)
    shards = wds.WebDataset(path, nodesplitter=wds.split_by_node).shuffle(1000)
    own = Subset(dataset, range(rank, len(dataset), world_size))
    mine = dataset[rank::world_size]
    return (
        DataLoader(streamed, batch_size=8, num_workers=2, pin_memory=True),
        DataLoader(shards, batch_size=8, num_workers=2, pin_memory=True),
        DataLoader(own, batch_size=8, num_workers=2, shuffle=True, pin_memory=True),
        DataLoader(mine, batch_size=8, num_workers=2, shuffle=True, pin_memory=True),
        DataLoader(Lines(path, rank, world_size), batch_size=8, num_workers=2, pin_memory=True),
        DataLoader(dataset, batch_sampler=batches, num_workers=2, pin_memory=True),
        DataLoader(dataset, sampler=sampler, batch_size=8, num_workers=2, pin_memory=True),
        DataLoader(dataset, batch_size=8, **kwargs),
    )


def wrap(model):
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(local_rank)
    return DDP(model.cuda(), device_ids=[local_rank])
