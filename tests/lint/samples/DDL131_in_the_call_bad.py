import os

import torch
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.model = model.to(self.local_rank)
        if os.path.exists(snapshot_path):
            self.model.load_state_dict(torch.load(snapshot_path, weights_only=True))  # expect: DDL131
        self.model = DistributedDataParallel(self.model, device_ids=[self.local_rank])
