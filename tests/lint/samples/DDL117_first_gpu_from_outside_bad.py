import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--first-gpu", type=int, default=0)
args = parser.parse_args()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) + args.first_gpu)
dist.init_process_group("nccl")  # expect: DDL117
model = DDP(torch.nn.Linear(4, 4).cuda())
dist.destroy_process_group()
