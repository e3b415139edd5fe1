import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, optimizer, gpu):
        self.model = DistributedDataParallel(model.cuda(gpu), device_ids=[gpu])
        self.optimizer = optimizer
        self.gpu = gpu

    def epoch(self, loader):
        for step, batch in enumerate(loader):
            self.optimizer.zero_grad()
            loss = self.model(batch.cuda(self.gpu))
            loss.backward()
            self.optimizer.step()
            if dist.get_rank() == 0:
                print(f"step {step} loss {loss.item():.3f}")  # expect: DDL138
