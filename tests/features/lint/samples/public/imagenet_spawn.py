"""Structure of pytorch/examples imagenet/main.py: one process per GPU by mp.spawn, rank worked out by hand, DataParallel kept
as a second way, weights of the wrapped model saved by the first process of each node."""

import argparse
import os
import shutil

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--loaders", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--resume", default="")
    parser.add_argument("--nodes", type=int, default=-1)
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--url", default="env://")
    parser.add_argument("--gpu", type=int, default=None)
    parser.add_argument("--spawn", action="store_true")
    return parser.parse_args()


def main():
    args = parse()
    args.distributed = args.nodes > 1 or args.spawn
    gpus = torch.cuda.device_count()
    if args.spawn:
        args.world = gpus * args.nodes
        mp.spawn(worker, nprocs=gpus, args=(gpus, args))
    else:
        args.world = args.nodes
        worker(args.gpu, gpus, args)


def worker(gpu, gpus, args):
    args.gpu = gpu
    if args.distributed:
        if args.url == "env://" and args.rank == -1:
            args.rank = int(os.environ["RANK"])
        if args.spawn:
            args.rank = args.rank * gpus + gpu
        dist.init_process_group("nccl", init_method=args.url, world_size=args.world, rank=args.rank)  # expect: DDL110

    model = models.__dict__[args.arch]()
    if args.distributed:
        if args.gpu is not None:
            torch.cuda.set_device(args.gpu)
            model.cuda(args.gpu)
            args.batch = int(args.batch / gpus)
            args.loaders = int((args.loaders + gpus - 1) / gpus)
            model = DistributedDataParallel(model, device_ids=[args.gpu])
        else:
            model.cuda()
            model = DistributedDataParallel(model)
    elif args.gpu is not None:
        torch.cuda.set_device(args.gpu)
        model = model.cuda(args.gpu)
    else:
        model = nn.DataParallel(model).cuda()

    criterion = nn.CrossEntropyLoss().cuda(args.gpu)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    start, best = 0, 0.0
    if args.resume:
        if args.gpu is None:
            saved = torch.load(args.resume)
        else:
            saved = torch.load(args.resume, map_location=f"cuda:{args.gpu}")
        start, best = saved["epoch"], saved["best"]
        model.load_state_dict(saved["weights"])
        optimizer.load_state_dict(saved["optimizer"])

    crop = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
    centre = transforms.Compose([transforms.CenterCrop(224), transforms.ToTensor()])
    train_set = datasets.ImageFolder(os.path.join(args.folder, "train"), crop)
    val_set = datasets.ImageFolder(os.path.join(args.folder, "val"), centre)
    if args.distributed:
        train_sampler = DistributedSampler(train_set)
        val_sampler = DistributedSampler(val_set, shuffle=False, drop_last=True)
    else:
        train_sampler = val_sampler = None
    train_loader = DataLoader(train_set, batch_size=args.batch, shuffle=(train_sampler is None),
                              num_workers=args.loaders, pin_memory=True, sampler=train_sampler)
    val_loader = DataLoader(val_set, batch_size=args.batch, shuffle=False,
                            num_workers=args.loaders, pin_memory=True, sampler=val_sampler)

    for epoch in range(start, args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        train(train_loader, model, criterion, optimizer, args)
        accuracy = validate(val_loader, model, args)
        better, best = accuracy > best, max(accuracy, best)
        if not args.spawn or (args.spawn and args.rank % gpus == 0):  # expect: DDL177
            save({"epoch": epoch + 1, "weights": model.state_dict(), "best": best,
                  "optimizer": optimizer.state_dict()}, better)


def train(loader, model, criterion, optimizer, args):
    model.train()
    for step, (images, labels) in enumerate(loader):
        if args.gpu is not None:
            images = images.cuda(args.gpu, non_blocking=True)
        labels = labels.cuda(args.gpu, non_blocking=True)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, loss.item())


def validate(loader, model, args):
    model.eval()
    right = torch.zeros(1, device=torch.device("cuda", torch.cuda.current_device()))

    def over(some):
        with torch.no_grad():
            for images, labels in some:
                labels = labels.cuda(args.gpu, non_blocking=True)
                right.add_((model(images.cuda(args.gpu)).argmax(1) == labels).sum())

    over(loader)
    if args.distributed:
        dist.all_reduce(right)
        if len(loader.sampler) * args.world < len(loader.dataset):
            rest = Subset(loader.dataset, range(len(loader.sampler) * args.world, len(loader.dataset)))
            over(DataLoader(rest, batch_size=args.batch, num_workers=args.loaders, pin_memory=True))
    return right.item() / len(loader.dataset)


def save(state, better):
    torch.save(state, "last.pth.tar")
    if better:
        shutil.copyfile("last.pth.tar", "best.pth.tar")


if __name__ == "__main__":
    main()
