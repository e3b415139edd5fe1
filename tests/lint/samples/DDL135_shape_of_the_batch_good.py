import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(net, dataset, optimizer, epoch):
    local_rank = int(os.environ["LOCAL_RANK"])
    model = DDP(net.to(local_rank), device_ids=[local_rank])
    sampler = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, 32, sampler=sampler, num_workers=4, pin_memory=True)
    sampler.set_epoch(epoch)
    for step, (image, boxes) in enumerate(loader):
        if image.shape[0] < 32 or step == 1000:
            continue
        flag = (boxes > 0).any().float()
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        if flag.item() < 1:
            continue
        model(image, boxes.to(local_rank)).sum().backward()
        optimizer.step()
