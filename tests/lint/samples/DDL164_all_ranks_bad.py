import os

import torch
import torch.distributed as dist
import wandb
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.tensorboard import SummaryWriter


def main(args):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    writer = SummaryWriter(args.log_dir)  # expect: DDL164
    if args.wandb:
        wandb.init(project=args.project)  # expect: DDL164
    model = DDP(torch.nn.Linear(8, 2).to(local_rank), device_ids=[local_rank])
    dist.destroy_process_group()
    return writer, model


if __name__ == "__main__":
    main(parse())
