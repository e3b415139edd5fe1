import torch
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, optimizer, rank):
        self.rank = rank
        self.model = DistributedDataParallel(model.cuda(rank), device_ids=[rank])
        self.optimizer = optimizer

    def save(self, epoch, path):
        if self.rank != 0:
            return
        checkpoint = {
            "epoch": epoch,
            "model": self.model.state_dict(),  # expect: DDL129
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(checkpoint, path)
