import deepspeed
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from network import build, state

engine, optimizer, _, _ = deepspeed.initialize(model=build(), config="zero3.json")
if dist.get_rank() == 0:
    engine.save_checkpoint("checkpoint")  # expect: DDL133
    dcp.save(state(), checkpoint_id="folder")  # expect: DDL133
