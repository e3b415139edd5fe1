import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

CHECKPOINT_DIR = "checkpoints/step1000"


def save(model):
    state = {"model": model.state_dict()}
    dcp.save(state, checkpoint_id=CHECKPOINT_DIR)


def load(model):
    state = torch.load(CHECKPOINT_DIR, map_location="cpu")  # expect: DDL132
    model.load_state_dict(state["model"])
    return FSDP(model)
