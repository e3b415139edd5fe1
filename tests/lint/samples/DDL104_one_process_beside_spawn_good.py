import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def work(gpu, size, batches):
    if size > 1:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29501"
        dist.init_process_group("nccl", rank=gpu, world_size=size)
    torch.cuda.set_device(gpu)
    net = torch.nn.Linear(8, 8).to(gpu)
    if size > 1:
        net = DistributedDataParallel(net, device_ids=[gpu])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        net(batch.to(gpu)).sum().backward()
        optimizer.step()
    if size > 1:
        dist.destroy_process_group()


def start(single, batches):
    if single:
        work(0, 1, batches)
        return
    size = torch.cuda.device_count()
    if size < 2:
        work(0, 1, batches)
    try:
        mp.spawn(work, args=(size, batches), nprocs=size)
    except RuntimeError:
        work(0, 1, batches)


if __name__ == "__main__":
    start(single=False, batches=[])
