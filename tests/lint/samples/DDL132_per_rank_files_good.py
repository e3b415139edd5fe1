"""Each rank reads the file that it wrote: torch.save wrote it, so torch.load may read it."""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


def save(model, folder):
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        torch.save(model.state_dict(), f"{folder}/rank{dist.get_rank()}.pt")


def load(model, folder):
    path = f"{folder}/rank{dist.get_rank()}.pt"
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        model.load_state_dict(torch.load(path, map_location="cpu"))
