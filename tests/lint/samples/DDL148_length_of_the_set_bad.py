import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, val_set, gpu):
        self.gpu = gpu
        self.val_set = val_set
        self.model = DistributedDataParallel(model.cuda(gpu), device_ids=[gpu])
        sampler = DistributedSampler(val_set, shuffle=False)
        self.val_loader = DataLoader(val_set, batch_size=64, sampler=sampler)

    @torch.no_grad()
    def validate(self):
        total_loss = 0.0
        for batch in self.val_loader:
            total_loss += self.model(batch.cuda(self.gpu)).sum().item()
        total_loss /= len(self.val_set)  # expect: DDL148
        print(f"validation loss {total_loss}")
