"""Dotted names of torch as the linter's rules write them, whatever module a script imports them from.

``from torch.nn.parallel.distributed import DistributedDataParallel as DDP`` and ``nn.parallel.DistributedDataParallel``
are both ``torch.nn.parallel.DistributedDataParallel``.
"""

from functools import lru_cache

#: Longest first: private modules, and the public modules that export their definitions.
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
#: Number of its first parameters with the same position in all releases: module to broadcast_buffers. The next one is
#: init_sync in torch 2.13 and 2.15 (torch/nn/parallel/distributed.py), process_group in older ones.
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

#: Calls of torch.distributed that require all ranks of a group.
COLLECTIVES = (
    *("all_reduce", "all_reduce_coalesced", "all_gather", "all_gather_into_tensor", "all_gather_single"),
    *("all_gather_object", "all_gather_coalesced", "broadcast", "broadcast_object_list", "reduce"),
    *("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "gather", "gather_into_tensor"),
    *("gather_single", "gather_object", "scatter", "scatter_object_list", "all_to_all", "all_to_all_single"),
    *("barrier", "monitored_barrier", "new_group"),
)

#: Public attributes of DistributedDataParallel and of torch.nn.Module. Source: torch 1.10 to 2.15,
#: torch/nn/parallel/distributed.py and torch/nn/modules/module.py.
_WORDS_OF_DDP = """
    T_destination add_module apply batched_grad_copy bfloat16 broadcast_bucket_size broadcast_buffers
    bucket_bytes_cap bucket_bytes_cap_default bucket_bytes_cap_list buffer_hook buffers call_super_init
    check_reduction children compile cpu cuda device device_ids device_mesh device_type dim double
    dump_patches eval extra_repr find_unused_parameters float forward forward_sync_buffers gather
    get_buffer get_extra_state get_parameter get_submodule gradient_as_bucket_view half ipu
    is_multi_device_module join join_device join_hook join_process_group load_state_dict logger
    mixed_precision module modules modules_buffers mtia named_buffers named_children
    named_module_buffers named_modules named_parameters no_sync output_device parameters
    parameters_to_ignore process_group reducer register_backward_hook register_buffer register_comm_hook
    register_forward_hook register_forward_pre_hook register_full_backward_hook
    register_full_backward_pre_hook register_load_state_dict_post_hook register_load_state_dict_pre_hook
    register_module register_parameter register_state_dict_post_hook register_state_dict_pre_hook
    require_backward_grad_sync require_forward_param_sync requires_grad_ scatter set_extra_state
    set_submodule share_memory skip_all_reduce_unused_params state_dict static_graph to to_empty
    to_kwargs train training type use_side_stream_for_tensor_copies will_sync_module_buffers xpu
    zero_grad
"""
OF_DDP = frozenset(_WORDS_OF_DDP.split())

#: The names that ``from MODULE import *`` binds, if rules ask for them.
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
    """Return the canonical name for ``name``."""
    if name.startswith("deepspeed.comm."):  # a module with the functions of torch.distributed and the same arguments
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
