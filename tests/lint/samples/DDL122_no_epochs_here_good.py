"""One pass over the data, or an epoch loop that lives elsewhere."""
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def make_loader(dataset, batch_size):
    sampler = DistributedSampler(dataset)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, num_workers=2, pin_memory=True)


def one_pass(model, dataset, local_rank):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    num_epochs = 1
    for _ in range(num_epochs):
        for batch in make_loader(dataset, 8):
            optimizer.zero_grad()
            model(batch.to(local_rank)).backward()
            optimizer.step()
