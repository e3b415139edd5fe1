import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, local_rank, path):
    raw_model = model.to(local_rank)
    ddp_model = DDP(raw_model, device_ids=[local_rank])
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    for batch in loader:
        optimizer.zero_grad()
        ddp_model(batch.to(local_rank)).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save(raw_model.state_dict(), path)
        torch.save({"model": ddp_model.module.state_dict(), "optimizer": optimizer.state_dict()}, path)
