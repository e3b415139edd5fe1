import deepspeed
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from network import build, state

engine, optimizer, _, _ = deepspeed.initialize(model=build(), config="zero3.json")
engine.save_checkpoint("checkpoint")
dcp.save(state(), checkpoint_id="folder")
if dist.get_rank() == 0:
    dcp.save({"step": 1}, checkpoint_id="note", no_dist=True)
    print("saved")
