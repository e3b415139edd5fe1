"""The forward happens in a function that is called inside the context."""
from torch.nn.parallel import DistributedDataParallel as DDP


def compute_loss(model, batch):
    return model(batch["input"]).sum()


def train(model, loader, optimizer, local_rank, accumulation):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    for i, batch in enumerate(loader):
        if (i + 1) % accumulation:
            with model.no_sync():
                loss = compute_loss(model, batch)
                loss.backward()
        else:
            loss = compute_loss(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
