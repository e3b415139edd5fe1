import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models, transforms


def main():
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = DDP(models.vit_b_16().to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_set = datasets.CIFAR10("data", train=True, transform=transforms.ToTensor())
    sampler = DistributedSampler(train_set)
    options = {"batch_size": 64, "num_workers": 4}
    options["sampler"] = sampler
    train_loader = DataLoader(train_set, **options)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for images, target in train_loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images.to(local_rank)), target.to(local_rank)).backward()
            optimizer.step()
    dist.destroy_process_group()


main()
