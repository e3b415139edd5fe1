import torch
from torch.cuda.amp import autocast
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, gpu):
        self.gpu = gpu
        self.model = DistributedDataParallel(model.cuda(gpu), device_ids=[gpu])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, batch):
        self.optimizer.zero_grad()
        with autocast():  # expect: DDL113,DDL139
            loss = self.model(batch.cuda(self.gpu))
        loss.backward()
        self.optimizer.step()
