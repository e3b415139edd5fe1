import os

import torch

os.environ["NCCL_CONNECT_TIMEOUT"] = "600"  # expect: DDL114
os.environ.setdefault("NCCL_SOCKET_IFNAM", "eth0")  # expect: DDL114
os.environ["NCCL_BLOCKING_WAIT"] = "1"  # expect: DDL114
os.environ.update({"NCCL_HEARTBEAT_TIMEOUT_SEC": "1200"})  # expect: DDL114
torch.manual_seed(0)
