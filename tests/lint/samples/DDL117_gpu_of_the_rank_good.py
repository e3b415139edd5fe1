"""Each of these has the GPU that torch 2.15 takes too, or nobody can know."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def under_torchrun(model):
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return DDP(model.cuda())


def under_any_launcher(model):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    return DDP(model.cuda())


def by_arithmetic(model, rank, node, gpus_of_a_node):
    dist.init_process_group("nccl", rank=rank)
    torch.cuda.set_device(rank - node * gpus_of_a_node)
    return DDP(model.cuda())


def on_a_part_of_the_node(index, first, model):
    dist.init_process_group("nccl", rank=first + index, world_size=8)
    torch.cuda.set_device(first + index)
    return DDP(model.cuda())


def on_all_gpus_of_some_nodes(gpu, gpus, model):
    rank = int(os.environ["NODE_RANK"]) * gpus + gpu
    dist.init_process_group("nccl", rank=rank, world_size=gpus * int(os.environ["NODES"]))
    torch.cuda.set_device(gpu)
    return DDP(model.cuda())


def by_hand(model, args):
    dist.init_process_group("nccl", rank=args.rank, world_size=args.world_size)
    torch.cuda.set_device(args.gpu)
    return DDP(model.cuda())


def from_a_counted_list(model):
    devices = [torch.device("cuda", gpu) for gpu in range(torch.cuda.device_count())]
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(devices[local_rank])
    torch.cuda.set_device([0, 1, 2, 3][local_rank])
    return DDP(model.cuda())


def on_the_cpu(model, local_rank):
    dist.init_process_group("gloo")
    torch.cuda.set_device(local_rank + 4)
    return DDP(model)


if __name__ == "__main__":
    net = torch.nn.Linear(4, 4)
    if sys.argv[1] == "spawn":
        mp.spawn(on_all_gpus_of_some_nodes, args=(torch.cuda.device_count(), net), nprocs=torch.cuda.device_count())
    else:
        under_torchrun(net)
    dist.destroy_process_group()
