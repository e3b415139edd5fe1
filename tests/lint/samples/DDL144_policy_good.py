import functools

from torch.distributed.fsdp import CPUOffload
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


def wrap(model, kwargs):
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=20_000)
    sharded = FSDP(model, auto_wrap_policy=policy, cpu_offload=CPUOffload(offload_params=True))
    return sharded, FSDP(model, cpu_offload=CPUOffload(offload_params=True), **kwargs)
