"""Without a process group in sight, and with a library that saves once."""
import io

import torch
from torch.nn.parallel import DistributedDataParallel


class Saver:
    def __init__(self, fabric):
        self.fabric = fabric

    def save(self, model, path):
        torch.save(model.state_dict(), path)

    def size(self, model):
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        return len(buffer.getvalue())


def wrap(model, gpu):
    return DistributedDataParallel(model, device_ids=[gpu])
