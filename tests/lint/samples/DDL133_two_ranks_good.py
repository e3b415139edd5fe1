import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29503", rank=rank, world_size=2)
    if rank == 1:
        dist.barrier()  # waits until rank 0 has printed
    print("rank", rank)
    if rank == 0:
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
