import os

import torch
from torch.distributed.checkpoint import FileSystemWriter, save


class Checkpointer:
    def __init__(self, folder):
        self.folder = folder

    def save(self, model):
        save({"model": model.state_dict()}, storage_writer=FileSystemWriter(self.folder))

    def load(self, model):
        shard = os.path.join(self.folder, "__0_0.distcp")
        model.load_state_dict(torch.load(shard))  # expect: DDL132
