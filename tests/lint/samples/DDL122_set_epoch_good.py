import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def train(model, dataset, val_set, local_rank, start_epoch, epochs):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset), num_workers=2, pin_memory=True)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    val_loader = DataLoader(val_set, batch_size=32, sampler=val_sampler)
    for epoch in range(start_epoch, epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            optimizer.zero_grad()
            model(batch.to(local_rank)).backward()
            optimizer.step()
        with torch.no_grad():
            for batch in val_loader:
                model(batch.to(local_rank))
