"""Structure of pytorch/examples distributed/ddp-tutorial-series/multigpu.py: one node, mp.spawn, the process index is the GPU,
a Trainer class that wraps the model."""

import os
import sys

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from datautils import Points
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def join_group(rank, size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    torch.cuda.set_device(rank)
    init_process_group(backend="nccl", rank=rank, world_size=size)


class Trainer:
    def __init__(self, model, data, optimizer, gpu, every):
        self.gpu = gpu
        self.model = model.to(gpu)
        self.data = data
        self.optimizer = optimizer
        self.every = every
        self.model = DDP(model, device_ids=[gpu])

    def batch(self, points, values):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(points), values)
        loss.backward()
        self.optimizer.step()

    def epoch(self, number):
        size = len(next(iter(self.data))[0])
        print(f"GPU {self.gpu}: epoch {number}, batch {size}, steps {len(self.data)}")
        self.data.sampler.set_epoch(number)
        for points, values in self.data:
            points = points.to(self.gpu)
            values = values.to(self.gpu)
            self.batch(points, values)

    def save(self, number):
        weights = self.model.module.state_dict()
        torch.save(weights, "checkpoint.pt")
        print(f"epoch {number} saved")

    def train(self, epochs):
        for number in range(epochs):
            self.epoch(number)
            if self.gpu == 0 and number % self.every == 0:
                self.save(number)


def parts():
    points = Points(2048)
    model = torch.nn.Linear(20, 1)
    return points, model, torch.optim.SGD(model.parameters(), lr=1e-3)


def loader_of(points, batch):
    return DataLoader(points, batch_size=batch, pin_memory=True, shuffle=False, sampler=DistributedSampler(points))  # expect: DDL137


def main(rank, size, every, epochs, batch):
    join_group(rank, size)
    points, model, optimizer = parts()
    trainer = Trainer(model, loader_of(points, batch), optimizer, rank, every)
    trainer.train(epochs)
    destroy_process_group()


if __name__ == "__main__":
    gpus = torch.cuda.device_count()
    mp.spawn(main, args=(gpus, int(sys.argv[2]), int(sys.argv[1]), 32), nprocs=gpus)
