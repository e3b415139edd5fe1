"""Two functions whose parameters have one name, and a path that is a folder or a file."""
import os
import sys

import torch
import torch.distributed.checkpoint as dcp


def to_shards(state, path):
    dcp.save(state, checkpoint_id=path)


def from_file(path):
    return torch.load(path, map_location="cpu")


def main(state):
    source = sys.argv[1]
    if os.path.isfile(source):
        return from_file(source)
    dcp.load(state, checkpoint_id=source)
    return state
