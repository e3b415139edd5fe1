from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(net, dataset, optimizer, epochs):
    model = DDP(net)
    loader = DataLoader(dataset, sampler=DistributedSampler(dataset))  # expect: DDL122
    epoch = 0
    while epoch < epochs:
        for batch in loader:
            model(batch).mean().backward()
            optimizer.step()
        epoch += 1
