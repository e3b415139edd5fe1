import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def unwrapped(net, path):
    """Load what was saved with its wrapper, in a group of one."""
    dist.init_process_group("nccl", rank=0, world_size=1, init_method="tcp://127.0.0.1:29511")
    wrapped = DistributedDataParallel(net.to("cuda:0"), device_ids=[0])
    wrapped.load_state_dict(torch.load(path, map_location="cuda:0"))
    dist.destroy_process_group()
    return wrapped.module
