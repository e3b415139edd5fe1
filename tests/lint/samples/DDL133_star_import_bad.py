import torch
from torch.distributed import *


def main(part, whole):
    init_process_group("nccl")
    if get_rank() == 0:
        all_gather_single(whole, part)  # expect: DDL133
    destroy_process_group()


if __name__ == "__main__":
    main(torch.ones(1), torch.ones(2))
