import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


def main():
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = DDP(models.vit_b_16().to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_set = datasets.CIFAR10("data", train=True, transform=transforms.ToTensor())
    train_loader = DataLoader(train_set, **{"batch_size": 64, "shuffle": True, "pin_memory": True, "num_workers": 4})  # expect: DDL120
    for epoch in range(10):
        for images, target in train_loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images.to(local_rank)), target.to(local_rank)).backward()
            optimizer.step()
    dist.destroy_process_group()


main()
