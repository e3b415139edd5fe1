"""Structure of pytorch/examples distributed/ddp-tutorial-series/multinode.py: torchrun, LOCAL_RANK for the device, RANK for who
saves, a snapshot that a restarted job goes on from."""

import os
import sys

import torch
import torch.nn.functional as F
from datautils import Points
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def join_group():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group(backend="nccl")


class Trainer:
    def __init__(self, model, data, optimizer, every, path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.model = model.to(self.local_rank)
        self.data = data
        self.optimizer = optimizer
        self.every = every
        self.done = 0
        self.path = path
        if os.path.exists(path):
            self.resume(path)
        self.model = DDP(self.model, device_ids=[self.local_rank])

    def resume(self, path):
        snapshot = torch.load(path, map_location=f"cuda:{self.local_rank}")
        self.model.load_state_dict(snapshot["weights"])
        self.done = snapshot["done"]

    def epoch(self, number):
        print(f"rank {self.global_rank}: epoch {number}, steps {len(self.data)}")
        self.data.sampler.set_epoch(number)
        for points, values in self.data:
            points = points.to(self.local_rank)
            values = values.to(self.local_rank)
            self.optimizer.zero_grad()
            F.mse_loss(self.model(points), values).backward()
            self.optimizer.step()

    def save(self, number):
        torch.save({"weights": self.model.module.state_dict(), "done": number}, self.path)

    def train(self, epochs):
        for number in range(self.done, epochs):
            self.epoch(number)
            if self.global_rank == 0 and number % self.every == 0:
                self.save(number)


def main(epochs, every, batch=32, path="snapshot.pt"):
    join_group()
    points = Points(2048)
    model = torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = DataLoader(points, batch_size=batch, pin_memory=True, shuffle=False, sampler=DistributedSampler(points))  # expect: DDL137
    Trainer(model, data, optimizer, every, path).train(epochs)
    destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
