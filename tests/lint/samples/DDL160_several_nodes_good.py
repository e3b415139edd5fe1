import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def worker(gpu, gpus, model):
    rank = int(os.environ["RANK"]) * gpus + gpu
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl", rank=rank, world_size=gpus * int(os.environ["WORLD_SIZE"]))
    model = DDP(model.to(gpu), device_ids=[gpu])
    dist.destroy_process_group()
    return model


def main(model):
    gpus = torch.cuda.device_count()
    mp.spawn(worker, args=(gpus, model), nprocs=gpus)
