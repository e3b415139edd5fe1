from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build(local_rank):
    """Called from another module, which has started the group."""
    model = nn.Linear(4, 4).to(local_rank)
    return DistributedDataParallel(model, device_ids=[local_rank])
