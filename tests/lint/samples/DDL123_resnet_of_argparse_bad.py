import argparse
import os

import torch
import torchvision
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", default=4, type=int, help="images per GPU")
args = parser.parse_args()

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
torch.distributed.init_process_group("nccl")  # expect: DDL110
model = torchvision.models.resnet50(weights="DEFAULT")  # expect: DDL123
model = torch.nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[local_rank])


def loader(dataset):
    return DataLoader(dataset, batch_size=args.batch_size, sampler=DistributedSampler(dataset), num_workers=2, pin_memory=True)
