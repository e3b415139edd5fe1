import torch
import torch.distributed as dist


def share(config, rank):
    if rank == 0:
        objects = [config]
        dist.broadcast_object_list(objects, src=0)
    else:
        objects = [None]
        dist.broadcast_object_list(objects, src=0)
    return objects[0]


def gather(tensor, rank, world):
    if rank == 0:
        parts = [torch.empty_like(tensor) for _ in range(world)]
        dist.gather(tensor, gather_list=parts, dst=0)
        return parts
    dist.gather(tensor, dst=0)
    return None


def download_once(fetch, local_rank):
    """Rank 0 first, the others after it: each of them meets one barrier."""
    if local_rank != 0:
        dist.barrier()
    dataset = fetch()
    if local_rank == 0:
        dist.barrier()
    return dataset


def point_to_point(tensor, rank):
    if rank == 0:
        dist.send(tensor, dst=1)
    elif rank == 1:
        dist.recv(tensor, src=0)
    return tensor


def in_a_group(tensor, rank):
    members = [0, 1]
    group = dist.new_group(members)
    if rank in members:
        dist.all_reduce(tensor, group=group)
