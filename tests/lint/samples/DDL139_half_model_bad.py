import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer, local_rank):
    net = net.to(local_rank).half()  # expect: DDL139
    model = DDP(net, device_ids=[local_rank])
    for batch in loader:
        model(batch.half()).mean().backward()
        optimizer.step()
        torch.cuda.nvtx.mark("step")
