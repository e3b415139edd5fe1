from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


def train(model, dataset, sampler, local_rank, args, kwargs):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    loader = DataLoader(dataset, 32, sampler=sampler, num_workers=args.workers, pin_memory=True)
    other = DataLoader(dataset, 32, sampler=sampler, **kwargs)
    val_loader = DataLoader(dataset, 32)
    for batch in loader:
        model(batch.to(local_rank, non_blocking=True)).backward()
    return other, val_loader
