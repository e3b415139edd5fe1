import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def work(_, node, nodes):
    dist.init_process_group("nccl", rank=node, world_size=nodes, device_id=torch.device("cuda", 0))
    net = DistributedDataParallel(torch.nn.Linear(4, 4).to("cuda:0"), device_ids=[0])
    net(torch.ones(2, 4, device="cuda:0")).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(int(os.environ["NODE_RANK"]), int(os.environ["WORLD_SIZE"])), nprocs=1)
