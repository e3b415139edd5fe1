import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, val_loader, local_rank, args):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    running = torch.zeros((), device=local_rank)
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        loss = model(batch.to(local_rank))
        loss.backward()
        optimizer.step()
        running += loss.detach()
        if step % args.log_interval == 0 and dist.get_rank() == 0:
            print(step, loss.item())
        if (step + 1) % 50 == 0:
            print(float(loss), loss.cpu())
    print(running.item())
    with torch.no_grad():
        for batch in val_loader:
            print(model(batch.to(local_rank)).item())
