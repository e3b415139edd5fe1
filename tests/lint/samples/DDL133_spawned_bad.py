import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, size, path):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29502", rank=rank, world_size=size)
    if rank == 0:
        torch.save({"size": size}, path)
        dist.barrier()  # expect: DDL133
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(2, "state.pt"), nprocs=2)
