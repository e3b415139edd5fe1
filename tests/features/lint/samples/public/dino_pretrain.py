"""Structure of facebookresearch/dino main_dino.py and utils.py: launchers told apart by the environment, a student that is wrapped
and a teacher wrapped only where it has batch norm, a centre that all ranks reduce inside the loss, saving behind a helper."""

import argparse
import math
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
import vision_transformer as vits
from augmentation import MultiCrop
from torch import nn
from torchvision import datasets


def init_distributed(args):
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        args.rank = int(os.environ["RANK"])
        args.world_size = int(os.environ["WORLD_SIZE"])
        args.gpu = int(os.environ["LOCAL_RANK"])
    elif "SLURM_PROCID" in os.environ:
        args.rank = int(os.environ["SLURM_PROCID"])
        args.gpu = args.rank % torch.cuda.device_count()
    elif torch.cuda.is_available():
        print("one GPU")
        args.rank, args.gpu, args.world_size = 0, 0, 1
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["MASTER_PORT"] = "29500"
    else:
        sys.exit("no GPU")
    dist.init_process_group("nccl", init_method=args.dist_url, world_size=args.world_size, rank=args.rank)
    torch.cuda.set_device(args.gpu)
    dist.barrier()


def is_main():
    return not dist.is_initialized() or dist.get_rank() == 0


def save_on_master(*args, **kwargs):
    if is_main():
        torch.save(*args, **kwargs)


class CentredLoss(nn.Module):
    def __init__(self, size, momentum=0.9):
        super().__init__()
        self.momentum = momentum
        self.register_buffer("centre", torch.zeros(1, size))

    def forward(self, student, teacher):
        target = F.softmax((teacher - self.centre) / 0.04, dim=-1).detach()
        self.update(teacher)
        return torch.sum(-target * F.log_softmax(student / 0.1, dim=-1), dim=-1).mean()

    @torch.no_grad()
    def update(self, teacher):
        mean = torch.sum(teacher, dim=0, keepdim=True)
        dist.all_reduce(mean)
        mean = mean / (len(teacher) * dist.get_world_size())
        self.centre = self.centre * self.momentum + mean * (1 - self.momentum)


def train(args):
    init_distributed(args)
    torch.backends.cudnn.benchmark = True
    dataset = datasets.ImageFolder(args.data_path, transform=MultiCrop(8))
    sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True)
    loader = torch.utils.data.DataLoader(
        dataset, sampler=sampler, batch_size=args.batch_size_per_gpu, num_workers=args.num_workers, pin_memory=True, drop_last=True
    )
    student = vits.with_head(args.arch, args.out_dim)
    teacher = vits.with_head(args.arch, args.out_dim)
    student, teacher = student.cuda(), teacher.cuda()
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in student.modules()):
        student = nn.SyncBatchNorm.convert_sync_batchnorm(student)
        teacher = nn.SyncBatchNorm.convert_sync_batchnorm(teacher)
        teacher = nn.parallel.DistributedDataParallel(teacher, device_ids=[args.gpu])
        teacher_without_ddp = teacher.module
    else:
        teacher_without_ddp = teacher
    student = nn.parallel.DistributedDataParallel(student, device_ids=[args.gpu])
    teacher_without_ddp.load_state_dict(student.module.state_dict())
    for parameter in teacher.parameters():
        parameter.requires_grad = False
    criterion = CentredLoss(args.out_dim).cuda()
    optimizer = torch.optim.AdamW(student.parameters())
    scaler = torch.cuda.amp.GradScaler() if args.use_fp16 else None  # expect: DDL113
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        train_one_epoch(student, teacher, teacher_without_ddp, criterion, loader, optimizer, scaler)
        state = {"student": student.state_dict(), "teacher": teacher.state_dict(), "epoch": epoch + 1}
        save_on_master(state, os.path.join(args.output_dir, "checkpoint.pth"))


def train_one_epoch(student, teacher, teacher_without_ddp, criterion, loader, optimizer, scaler):
    for images, _ in loader:
        images = [image.cuda(non_blocking=True) for image in images]
        with torch.cuda.amp.autocast(scaler is not None):  # expect: DDL113
            loss = criterion(student(images), teacher(images[:2]))
        if not math.isfinite(loss.item()):  # expect: DDL138
            print(f"the loss is {loss.item()}, stopping", force=True)
            sys.exit(1)
        optimizer.zero_grad()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        with torch.no_grad():
            for mine, theirs in zip(student.module.parameters(), teacher_without_ddp.parameters()):
                theirs.data.mul_(0.996).add_(0.004 * mine.detach().data)
        torch.cuda.synchronize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser("pretrain")
    parser.add_argument("--arch", default="vit_small")
    parser.add_argument("--out_dim", default=65536, type=int)
    parser.add_argument("--use_fp16", action="store_true")
    parser.add_argument("--batch_size_per_gpu", default=64, type=int)
    parser.add_argument("--epochs", default=100, type=int)
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--output_dir", default=".")
    parser.add_argument("--num_workers", default=10, type=int)
    parser.add_argument("--dist_url", default="env://")
    parser.add_argument("--local_rank", default=0, type=int)
    train(parser.parse_args())
