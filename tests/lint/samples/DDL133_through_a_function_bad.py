"""The collective stands in a function, and the call of the function stands under the rank."""
import torch
import torch.distributed as dist


def average(value):
    tensor = torch.tensor([value], device="cuda")
    dist.all_reduce(tensor)  # expect: DDL133
    return tensor.item() / dist.get_world_size()


def is_main_process():
    return dist.get_rank() == 0


def report(loss, step):
    if is_main_process():
        print(step, average(loss))
