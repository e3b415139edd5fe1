import os

from torch.utils.data import DataLoader


def loader(dataset, sampler, batch_size):
    world = int(os.environ["WORLD_SIZE"])
    per_gpu = int(batch_size / world)
    per_rank = per_gpu // world  # expect: DDL145
    return DataLoader(dataset, batch_size=per_rank, sampler=sampler)
