from datetime import timedelta

import torch
import torch.distributed as dist


def main(part, whole):
    dist.init_process_group("nccl")
    if hasattr(dist, "set_timeout"):
        dist.set_timeout(timedelta(minutes=30))
    else:
        dist.distributed_c10d._set_pg_timeout(timedelta(minutes=30))
    dist.all_gather_into_tensor(whole, part)
    dist.reduce_scatter_tensor(part, whole)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(torch.ones(1), torch.ones(2))
