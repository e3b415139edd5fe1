import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(net, dataset, optimizer, epoch):
    local_rank = int(os.environ["LOCAL_RANK"])
    model = DDP(net.to(local_rank), device_ids=[local_rank])
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 32, sampler=sampler, num_workers=4, pin_memory=True)
    sampler.set_epoch(epoch)
    for image, boxes in loader:
        valid = boxes > 0
        if not valid.any():
            continue  # expect: DDL135
        loss = model(image, boxes.to(local_rank)).sum()
        if not torch.isfinite(loss):
            continue  # expect: DDL135
        loss.backward()
        optimizer.step()
        dist.barrier()
