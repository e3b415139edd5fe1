"""Formerly started with python -m torch.distributed.launch."""
import subprocess

import torch

subprocess.run(["torchrun", f"--nproc-per-node={torch.cuda.device_count()}", "train.py"], check=True)
print("torch.distributed.launch is not used any more")
