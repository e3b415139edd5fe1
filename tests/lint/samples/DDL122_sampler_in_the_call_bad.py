import os

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data


class Trainer:
    def __init__(self, model, train_set):
        self.rank = int(os.environ["LOCAL_RANK"])
        self.model = DistributedDataParallel(model.cuda(self.rank), device_ids=[self.rank])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = data.DataLoader(
            train_set,
            batch_size=64,
            sampler=data.distributed.DistributedSampler(train_set, shuffle=True),  # expect: DDL122
            num_workers=2,
            pin_memory=True,
        )

    def fit(self, max_epochs: int):
        for epoch in range(max_epochs):
            self.run_epoch(epoch)

    def run_epoch(self, epoch):
        for source, targets in self.loader:
            source, targets = source.cuda(self.rank), targets.cuda(self.rank)
            self.optimizer.zero_grad()
            loss = self.model(source, targets)
            loss.backward()
            self.optimizer.step()
        print(f"[GPU {self.rank}] epoch {epoch}")
