import torch.distributed as dist
import torch.nn as nn
import utils
from torch.nn.parallel import DistributedDataParallel as DDP


def main(args):
    utils.init_distributed_mode(args)
    model = DDP(nn.Linear(4, 4).to("cuda"))
    model.train()
    dist.destroy_process_group()
