import torch
import torch.distributed as dist
import wandb
from elsewhere import where_am_i, which_rank
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.tensorboard import SummaryWriter


def main(args):
    args.local_rank, args.rank, args.world_size = where_am_i()
    torch.cuda.set_device(args.local_rank)
    dist.init_process_group("nccl", rank=args.rank, world_size=args.world_size)
    if args.rank == 0 and args.wandb:
        wandb.init(project=args.project)
    rank = which_rank()
    writer = SummaryWriter(args.log_dir) if 0 == rank else None
    model = DDP(torch.nn.Linear(8, 2).to(args.local_rank), device_ids=[args.local_rank])
    dist.destroy_process_group()
    return writer, model


if __name__ == "__main__":
    main(parse())
