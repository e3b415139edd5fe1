"""Each process sees one GPU, which is GPU 0 for it."""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["SLURM_LOCALID"]

import torch
from torch import distributed, nn

distributed.init_process_group("nccl")
torch.cuda.set_device(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).to("cuda:0"), device_ids=[0])
distributed.destroy_process_group()
