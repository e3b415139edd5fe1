import os
import subprocess
import sys

import torch

gpus = str(torch.cuda.device_count())
command = [sys.executable, "-m", "torch.distributed.launch", f"--nproc_per_node={gpus}", "train.py"]
subprocess.run(command, check=True)  # expect: DDL118
os.system(f"python -m torch.distributed.launch --nproc_per_node={gpus} train.py")  # expect: DDL118
