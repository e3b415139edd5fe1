import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def main(loader, net, optimizer):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    model = DDP(net.to(local_rank), device_ids=[local_rank])
    for epoch in range(10):
        loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images.to(local_rank)), labels.to(local_rank))
            loss.backward()
            optimizer.step()
            torch.cuda.empty_cache()  # expect: DDL165
    dist.destroy_process_group()
