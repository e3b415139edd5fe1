import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATION_STEPS = 4


def train(model, loader, sampler, local_rank, epochs):
    dist.init_process_group("nccl")
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for i, (inputs, target) in enumerate(loader):
            inputs, target = inputs.to(local_rank), target.to(local_rank)
            loss = torch.nn.functional.cross_entropy(model(inputs), target) / ACCUMULATION_STEPS
            loss.backward()  # expect: DDL124
            if (i + 1) % ACCUMULATION_STEPS == 0:
                optimizer.step()
                optimizer.zero_grad()
