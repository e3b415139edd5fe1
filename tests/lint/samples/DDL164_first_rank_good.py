import os

import torch
import torch.distributed as dist
import wandb
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.tensorboard import SummaryWriter


def is_main_process():
    return dist.get_rank() == 0


def main(args):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    writer = SummaryWriter(args.log_dir) if rank == 0 else None
    each = SummaryWriter(f"{args.log_dir}/{rank}")
    if is_main_process():
        wandb.init(project=args.project)
    wandb.init(project=args.project, group="one run", name=f"rank {rank}")
    model = DDP(torch.nn.Linear(8, 2).to(local_rank), device_ids=[local_rank])
    dist.destroy_process_group()
    return writer, each, model


if __name__ == "__main__":
    main(parse())
