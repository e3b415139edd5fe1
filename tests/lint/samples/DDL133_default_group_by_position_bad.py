import torch
import torch.distributed as dist


def main(tensor):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    if rank == 0:
        dist.barrier(None)  # expect: DDL133
        dist.all_reduce(tensor, dist.ReduceOp.SUM)  # expect: DDL133
    dist.destroy_process_group()


if __name__ == "__main__":
    main(torch.ones(1))
