import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(model, dataset, local_rank, epochs):
    dist.init_process_group("nccl")
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.Adam(model.parameters())
    sampler = DistributedSampler(dataset)  # expect: DDL122
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, num_workers=2, pin_memory=True)
    for epoch in range(epochs):
        model.train()
        for images, target in loader:
            optimizer.zero_grad()
            loss = model(images.to(local_rank), target.to(local_rank))
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} done")
