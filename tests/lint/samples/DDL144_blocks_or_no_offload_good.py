from torch.distributed.fsdp import CPUOffload
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def shard(model, offload):
    for name, block in model.blocks.named_children():
        model.blocks.add_module(name, FSDP(block, cpu_offload=CPUOffload(offload_params=True)))
    return FSDP(model, cpu_offload=CPUOffload(offload_params=True))


def whole(model):
    return FSDP(model), FSDP(model, cpu_offload=CPUOffload(offload_params=False))


def by_hand(model):
    with enable_wrap(wrapper_cls=FSDP):
        return wrap(model)
