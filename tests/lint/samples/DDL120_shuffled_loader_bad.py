"""Trains a classifier on several GPUs."""
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = DDP(models.vit_b_16().to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_set = datasets.CIFAR10("data", train=True, transform=transforms.ToTensor())
    train_loader = DataLoader(  # expect: DDL120
        train_set,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=4,
        pin_memory=True,
    )
    for _ in range(10):
        for images, target in train_loader:
            images = images.to(local_rank, non_blocking=True)
            target = target.to(local_rank, non_blocking=True)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), target).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
