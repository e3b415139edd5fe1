import torch
import torch.distributed as dist


def main(part, whole):
    dist.init_process_group("nccl")
    if dist.get_rank() == 0:
        dist.gather_single(part, whole, dst=0)  # expect: DDL133
        dist.gather_into_tensor(part, whole, 0)  # expect: DDL133
        dist.all_gather_single(whole, part)  # expect: DDL133
        dist.reduce_scatter_single(part, whole)  # expect: DDL133
        dist.all_gather_into_tensor(whole, part)  # expect: DDL133
        dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.SUM, None)  # expect: DDL133
    dist.destroy_process_group()


if __name__ == "__main__":
    main(torch.ones(1), torch.ones(2))
