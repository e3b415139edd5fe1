import os

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.world_size = int(os.environ["WORLD_SIZE"])
        torch.cuda.set_device(self.local_rank)
        init_process_group("nccl", rank=self.local_rank, world_size=self.world_size)  # expect: DDL161
        self.model = DistributedDataParallel(model.to(self.local_rank), device_ids=[self.local_rank])


if __name__ == "__main__":
    Trainer(torch.nn.Linear(8, 2))
    destroy_process_group()
