import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


class Segmenter(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Conv3d(1, 32, 3, padding=1)
        self.norm = nn.BatchNorm3d(32)  # expect: DDL123
        self.head = nn.Conv3d(32, classes, 1)

    def forward(self, volume):
        return self.head(torch.relu(self.norm(self.stem(volume))))


def main(dataset, local_rank, epochs):
    dist.init_process_group("nccl")
    model = DDP(Segmenter(4).to(local_rank), device_ids=[local_rank])
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=4, pin_memory=True)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for volume, target in loader:
            volume, target = volume.to(local_rank), target.to(local_rank)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(volume), target).backward()
            optimizer.step()
