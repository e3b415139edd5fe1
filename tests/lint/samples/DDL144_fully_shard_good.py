import torch.distributed as dist
from network import build
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

dist.init_process_group("nccl")
model = build()
for layer in model.layers:
    fully_shard(layer, offload_policy=CPUOffloadPolicy())
fully_shard(model, offload_policy=CPUOffloadPolicy())
