import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def evaluate(model, loader, local_rank):
    correct = torch.zeros((), device=local_rank)
    with torch.no_grad():
        for images, target in loader:
            output = model(images.to(local_rank))
            correct += (output.argmax(1) == target.to(local_rank)).sum()
    dist.all_reduce(correct)
    return 100.0 * correct.item() / len(loader.dataset)


def main(model, val_set, local_rank):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    sampler = DistributedSampler(val_set, shuffle=False)
    loader = DataLoader(val_set, batch_size=64, sampler=sampler, num_workers=2, pin_memory=True)
    print(evaluate(model, loader, local_rank))
