from torch.distributed.fsdp import CPUOffload
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(model):
    return FSDP(model, cpu_offload=CPUOffload(offload_params=True), use_orig_params=True)  # expect: DDL144
