import os

import torch.distributed as dist

os.environ.update({"TORCH_DIST_TIMEOUT": "3600"})  # expect: DDL114
os.environ.setdefault("NCCL_COMM_TIMEOUT", "3600")  # expect: DDL114
os.environ["NCCL_IB_TIMEOUT"] = "22"
os.environ["SERVICE_TIMEOUT"] = "60"
dist.init_process_group("nccl")
