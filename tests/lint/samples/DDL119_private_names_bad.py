from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout


def main(part, whole):
    dist.init_process_group("nccl")
    _set_pg_timeout(timedelta(minutes=30))  # expect: DDL119
    dist.distributed_c10d._set_pg_timeout(timedelta(minutes=30), dist.group.WORLD)  # expect: DDL119
    dist._all_gather_base(whole, part)  # expect: DDL119
    if dist.get_rank() == 0:
        dist._reduce_scatter_base(part, whole)  # expect: DDL119,DDL133
    dist.destroy_process_group()


if __name__ == "__main__":
    main(torch.ones(1), torch.ones(2))
