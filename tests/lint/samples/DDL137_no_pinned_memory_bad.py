import torch
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, dataset, sampler, gpu):
        self.gpu = gpu
        self.model = DistributedDataParallel(model.cuda(gpu), device_ids=[gpu])
        self.train_loader = torch.utils.data.DataLoader(  # expect: DDL137
            dataset,
            batch_size=32,
            sampler=sampler,
            num_workers=0,
            pin_memory=True,
        )
        self.second = torch.utils.data.DataLoader(  # expect: DDL137
            dataset,
            batch_size=32,
            sampler=sampler,
            num_workers=4,
        )

    def epoch(self):
        for batch in self.train_loader:
            self.model(batch.cuda(self.gpu, non_blocking=True)).backward()
