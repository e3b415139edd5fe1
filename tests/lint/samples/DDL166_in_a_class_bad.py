from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, net, loader, optimizer, gpu):
        self.net = DistributedDataParallel(net.to(gpu), device_ids=[gpu])
        self.loader, self.optimizer, self.gpu = loader, optimizer, gpu

    def epoch(self):
        for tokens in self.loader:
            tokens = tokens.to(self.gpu)
            scores = self.net.module(tokens[:, :-1])  # expect: DDL166
            loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
