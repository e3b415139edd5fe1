import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self, model, dataset, sampler, gpu):
        self.gpu = gpu
        self.model = DistributedDataParallel(model.cuda(gpu), device_ids=[gpu])
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=2, pin_memory=True)

    def epoch(self):
        for source, targets in self.loader:
            source = source.cuda(self.gpu)
            targets.to(self.gpu)
            self.optimizer.zero_grad()
            output = self.model(source)
            loss = F.cross_entropy(output, targets)  # expect: DDL136
            loss.backward()
            self.optimizer.step()
