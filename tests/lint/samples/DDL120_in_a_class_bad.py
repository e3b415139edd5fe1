import torch
import torch.distributed as dist
import torch.nn.parallel
import torch.utils.data as data


class Trainer:
    def __init__(self, model, dataset, local_rank):
        self.device = torch.device("cuda", local_rank)
        self.model = torch.nn.parallel.DistributedDataParallel(model.to(self.device), device_ids=[local_rank])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.train_loader = self.prepare(dataset)

    def prepare(self, dataset):
        return data.DataLoader(dataset, 32, True, num_workers=8, pin_memory=True)  # expect: DDL120

    def train(self, epochs):
        for _ in range(epochs):
            for source, targets in self.train_loader:
                source = source.to(self.device)
                targets = targets.to(self.device)
                self.optimizer.zero_grad()
                loss = self.model(source, targets)
                loss.backward()
                self.optimizer.step()


def start():
    dist.init_process_group(backend="nccl")
