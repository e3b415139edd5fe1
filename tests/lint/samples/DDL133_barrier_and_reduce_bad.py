import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def evaluate(model, loader, local_rank):
    correct = torch.zeros(1, device=local_rank)
    model.eval()
    with torch.no_grad():
        for images, target in loader:
            correct += (model(images.to(local_rank)).argmax(1) == target.to(local_rank)).sum()
    if dist.get_rank() == 0:
        dist.all_reduce(correct)  # expect: DDL133
        print("accuracy", correct.item() / len(loader.dataset))


def save(model, path):
    rank = dist.get_rank()
    if rank == 0:
        torch.save(model.state_dict(), path)
        dist.barrier()  # expect: DDL133
