"""A bare loop of all-reduces, as a person would write it; prints the median seconds of one size."""

import statistics
import sys
import time

import torch
import torch.distributed as dist

size, iterations = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
tensor = torch.zeros(size // 4)
dist.all_reduce(tensor)
times = []
for _ in range(iterations):
    started = time.perf_counter()
    dist.all_reduce(tensor)
    times.append(time.perf_counter() - started)
slowest = torch.tensor([statistics.median(times)])
dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
if dist.get_rank() == 0:
    print(slowest.item())
dist.destroy_process_group()
