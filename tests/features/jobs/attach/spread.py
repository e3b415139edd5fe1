"""A rank of a gloo job whose last rank makes no progress. torchrun or srun determines the rank."""

import os
import threading

RANK = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
SIZE = int(os.environ["WORLD_SIZE"])


def main() -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=RANK, world_size=SIZE)
    dist.barrier()
    os.write(1, b"begun\n")  # in one piece, because the ranks share a pipe
    if SIZE - 1 == RANK:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main()
