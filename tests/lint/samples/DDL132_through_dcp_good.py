import torch
import torch.distributed.checkpoint as dcp

CHECKPOINT_DIR = "checkpoints/step1000"
EXPORT = "checkpoints/model.pt"


def save(model):
    dcp.save({"model": model.state_dict()}, checkpoint_id=CHECKPOINT_DIR)
    torch.save(model.state_dict(), EXPORT)


def load(model, exported):
    if exported:
        model.load_state_dict(torch.load(EXPORT, map_location="cpu"))
        return
    state = {"model": model.state_dict()}
    dcp.load(state, checkpoint_id=CHECKPOINT_DIR)
    model.load_state_dict(state["model"])
