import torch


class DataModule:
    def __init__(self, dataset):
        self.dataset = dataset
        self.sampler = torch.utils.data.DistributedSampler(dataset)

    def loader(self):
        return torch.utils.data.DataLoader(  # expect: DDL121
            self.dataset,
            16,
            True,
            self.sampler,
            num_workers=2,
        )

    def next_epoch(self, epoch):
        self.sampler.set_epoch(epoch)

