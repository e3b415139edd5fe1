import os

import torch

os.environ["NCCL_SOCKET_IFNAME"] = "eth0"
os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"] = "1200"
os.environ["TORCH_HOME"] = "/data/torch"
os.environ["MY_OWN_NAME"] = "1"
torch.manual_seed(0)
