import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data.distributed import DistributedSampler


def worker(gpu, gpus, dataset, model):
    torch.cuda.set_device(gpu)
    dist.init_process_group("nccl", "tcp://localhost:23456", rank=gpu, world_size=gpus)
    sampler = DistributedSampler(dataset, num_replicas=gpus, rank=gpu)
    model = DDP(model.to(gpu), device_ids=[gpu])
    dist.destroy_process_group()
    return sampler, model


def main(dataset, model):
    gpus = torch.cuda.device_count()
    mp.spawn(worker, args=(gpus, dataset, model), nprocs=gpus)
