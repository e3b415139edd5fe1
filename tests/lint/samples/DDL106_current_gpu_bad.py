import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("nccl")
    model = nn.Linear(4, 4)
    model.cuda()  # expect: DDL106
    model = DDP(model)
    model.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
