import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(dataset, epoch):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(nn.Linear(8, 2).cuda())
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 32, sampler=sampler, num_workers=4, pin_memory=True)
    sampler.set_epoch(epoch)
    for image, target in loader:
        output = model(image)  # expect: DDL136
        loss = nn.functional.cross_entropy(input=output, target=target)  # expect: DDL136
        loss.backward()


train(torch.load("data.pt", map_location="cpu"), 0)
dist.destroy_process_group()
