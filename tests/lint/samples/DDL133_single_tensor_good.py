import torch
import torch.distributed as dist


def main(part, whole):
    dist.init_process_group("nccl")
    first = dist.new_group([0])
    if dist.get_rank() == 0:
        dist.gather_single(part, whole, 0, first)
        dist.gather_into_tensor(part, whole, 0, first)
        dist.all_gather_single(whole, part, first)
        dist.reduce_scatter_single(part, whole, dist.ReduceOp.SUM, first)
    dist.all_gather_single(whole, part)
    dist.reduce_scatter_single(part, whole)
    dist.gather_single(part, whole if dist.get_rank() == 0 else None, dst=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(torch.ones(1), torch.ones(2))
