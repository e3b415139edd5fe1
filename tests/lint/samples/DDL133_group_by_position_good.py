import torch
import torch.distributed as dist


def main(tensor):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    first = dist.new_group([0])
    if rank == 0:
        dist.barrier(first)
        dist.all_reduce(tensor, dist.ReduceOp.SUM, first)
        dist.broadcast(tensor, 0, first)
        dist.reduce(tensor, 0, dist.ReduceOp.SUM, first)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(torch.ones(1))
