import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 2)

    def forward(self, images, target):
        device = self.body.weight.device
        return nn.functional.cross_entropy(self.body(images.to(device)), target.to(device))


def train(dataset, epoch):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DDP(Net().cuda())
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 32, sampler=sampler, num_workers=4, pin_memory=True)
    sampler.set_epoch(epoch)
    for image, target in loader:
        model(image, target).backward()


train(torch.load("data.pt", map_location="cpu"), 0)
dist.destroy_process_group()
