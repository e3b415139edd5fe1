import os

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import BatchNorm1d, Linear, Sequential, SyncBatchNorm
from torch.nn.parallel.distributed import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
init_process_group(backend="nccl")
model = Sequential(Linear(4, 4), BatchNorm1d(4)).cuda()
model = DistributedDataParallel(model, device_ids=[local_rank])
model = SyncBatchNorm.convert_sync_batchnorm(model)  # expect: DDL103
model.train()
destroy_process_group()
