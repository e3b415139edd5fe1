"""Dotted names of torch as the linter's rules write them, whatever module a script imports them from.

``from torch.nn.parallel.distributed import DistributedDataParallel as DDP`` and ``nn.parallel.DistributedDataParallel``
are both ``torch.nn.parallel.DistributedDataParallel``.
"""

from functools import lru_cache

#: Longest first: private modules, and the public ones that export what they define.
_EXPORTED_BY = (
    ("torch.distributed.distributed_c10d.", "torch.distributed."),
    ("torch.nn.parallel.distributed.", "torch.nn.parallel."),
    ("torch.nn.parallel.data_parallel.", "torch.nn."),
    ("torch.nn.modules.batchnorm.", "torch.nn."),
    ("torch.nn.modules.", "torch.nn."),
    ("torch.utils.data.dataloader.", "torch.utils.data."),
    ("torch.utils.data.sampler.", "torch.utils.data."),
    ("torch.utils.data.dataset.", "torch.utils.data."),
    ("torch.cuda.amp.grad_scaler.", "torch.cuda.amp."),
    ("torch.cuda.amp.autocast_mode.", "torch.cuda.amp."),
    ("torch.amp.grad_scaler.", "torch.amp."),
    ("torch.amp.autocast_mode.", "torch.amp."),
    ("torch.multiprocessing.spawn.", "torch.multiprocessing."),
    ("torch.distributed._composable.fsdp.fully_shard.", "torch.distributed.fsdp."),
    ("torch.distributed._composable.fsdp.", "torch.distributed.fsdp."),
    ("torch.distributed.fsdp._fully_shard.", "torch.distributed.fsdp."),
)
_SAME = {
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.utils.data.DistributedSampler": "torch.utils.data.distributed.DistributedSampler",
    "torch.autocast": "torch.amp.autocast",
    "torch.GradScaler": "torch.amp.GradScaler",
    "torch.nn.modules.batchnorm": "torch.nn",
}

DDP = "torch.nn.parallel.DistributedDataParallel"
#: How many of its first parameters stand in the same place in all releases: module to broadcast_buffers. Behind them
#: torch 2.13 and 2.15 (torch/nn/parallel/distributed.py) have init_sync, older ones process_group.
SHARED_BY_DDP = 5
DATA_PARALLEL = "torch.nn.DataParallel"
INIT = "torch.distributed.init_process_group"
DESTROY = "torch.distributed.destroy_process_group"
SET_DEVICE = "torch.cuda.set_device"
CONVERT_SYNC_BN = "torch.nn.SyncBatchNorm.convert_sync_batchnorm"
LOADER = "torch.utils.data.DataLoader"
SAMPLER = "torch.utils.data.distributed.DistributedSampler"
SPAWN = "torch.multiprocessing.spawn"
FSDP = ("torch.distributed.fsdp.FullyShardedDataParallel", "torch.distributed.fsdp.fully_shard")

#: Calls of torch.distributed in which all ranks of a group take part.
COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_single"),
    *("all_gather_object", "all_gather_coalesced", "broadcast", "broadcast_object_list", "reduce"),
    *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "gather", "gather_into_tensor"),
    *("gather_single", "gather_object", "scatter", "scatter_object_list", "all_to_all", "all_to_all_single"),
    *("barrier", "monitored_barrier", "new_group"),
)

#: What ``from MODULE import *`` brings, as far as rules ask for it.
STARS = {
    "torch.distributed": (
        *("init_process_group", "destroy_process_group", "get_rank", "get_world_size", "is_initialized"),
        *COLLECTIVES,
    ),
    "torch.nn.parallel": ("DistributedDataParallel", "DataParallel"),
    "torch.nn": ("DataParallel", "SyncBatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Module", "parallel"),
    "torch.utils.data": ("DataLoader", "DistributedSampler", "Dataset", "TensorDataset"),
    "torch.utils.data.distributed": ("DistributedSampler",),
    "torch.cuda.amp": ("GradScaler", "autocast"),
}


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """The canonical name of what ``name`` refers to."""
    if name.startswith("deepspeed.comm."):  # has the functions of torch.distributed, with the same arguments
        return "torch.distributed." + name.rpartition(".")[2]
    if not name.startswith("torch."):
        return name
    for private, public in _EXPORTED_BY:
        if name.startswith(private):
            name = public + name[len(private) :]
            break
    if name.startswith("torch.distributed.fsdp.fully_sharded_data_parallel."):
        name = "torch.distributed.fsdp." + name.rpartition(".")[2]
    return _SAME.get(name, name)
