import torch.distributed
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, optimizer, gpu):
        self.gpu = gpu
        self.model = DistributedDataParallel(model.cuda(gpu), device_ids=[gpu])
        self.optimizer = optimizer

    def step(self, batch):
        self.optimizer.zero_grad()
        self.model(batch.cuda(self.gpu)).backward()
        for p in self.model.parameters():
            if p.grad is not None:
                torch.distributed.all_reduce(p.grad)  # expect: DDL147
        self.optimizer.step()
