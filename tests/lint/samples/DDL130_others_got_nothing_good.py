import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def collected(loss):
    """All losses on rank 0, nothing on the others."""
    losses = torch.empty(dist.get_world_size(), device=loss.device)
    dist.all_gather_into_tensor(losses, loss)
    if dist.get_rank() != 0:
        return None
    return losses


def train(net, loader, optimizer, gpu):
    net = DistributedDataParallel(net.to(gpu), device_ids=[gpu])
    for _ in range(5):
        for batch in loader:
            optimizer.zero_grad()
            loss = net(batch).mean()
            loss.backward()
            optimizer.step()
        losses = collected(loss.detach().view(1))
        if losses is None:
            continue
        torch.save(net.module.state_dict(), "last.pt")
