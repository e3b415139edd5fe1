import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision import datasets


def worker(gpu, gpus, data):
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl", "tcp://localhost:23456", rank=gpu, world_size=gpus)
    model = DDP(torch.nn.Linear(8, 2).to(gpu), device_ids=[gpu])
    dist.destroy_process_group()
    return model, data


if __name__ == "__main__":
    digits = datasets.MNIST("data", download=True)
    mp.spawn(worker, args=(torch.cuda.device_count(), digits), nprocs=torch.cuda.device_count())
