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
        for step, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images.to(local_rank)), labels.to(local_rank))
            loss.backward()
            optimizer.step()
            if step % 1000 == 999:
                torch.cuda.empty_cache()
        torch.cuda.empty_cache()
    dist.destroy_process_group()
