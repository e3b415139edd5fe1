"""Structure of pytorch/vision references/classification/train.py: the process group and who saves stand in a module beside it
(utils), device is args.device, SyncBatchNorm before wrapping, a cache of the data set that torch.load reads."""

import os

import presets
import torch
import torchvision
import utils
from torch import nn
from torch.utils.data import DataLoader


def train_one_epoch(model, criterion, optimizer, loader, device, args, scaler=None):
    model.train()
    meters = utils.Meters()
    for image, target in meters.every(loader, args.print_freq):
        image, target = image.to(device), target.to(device)
        with torch.cuda.amp.autocast(enabled=scaler is not None):  # expect: DDL113
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            if args.clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        meters.update(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])  # expect: DDL138


def evaluate(model, criterion, loader, device):
    model.eval()
    meters = utils.Meters()
    seen = 0
    with torch.inference_mode():
        for image, target in meters.every(loader, 100):
            image = image.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            output = model(image)
            meters.update(loss=criterion(output, target).item())
            seen += image.shape[0]
    seen = utils.reduce_across_processes(seen)
    if len(loader.dataset) != seen and torch.distributed.get_rank() == 0:
        print(f"{seen} samples were seen, the data set has {len(loader.dataset)}")
    meters.synchronize_between_processes()
    return meters.accuracy


def load_data(folder, args, training):
    cache = os.path.join(os.path.expanduser("~"), ".cache", f"{os.path.basename(folder)}.pt")
    if args.cache_dataset and os.path.exists(cache):
        dataset, _ = torch.load(cache, weights_only=False)
    else:
        dataset = torchvision.datasets.ImageFolder(folder, presets.of(training))
        if args.cache_dataset:
            utils.save_on_master((dataset, folder), cache)
    if args.distributed:
        sampler = torch.utils.data.distributed.DistributedSampler(dataset, shuffle=training)
    elif training:
        sampler = torch.utils.data.RandomSampler(dataset)
    else:
        sampler = torch.utils.data.SequentialSampler(dataset)
    return dataset, sampler


def main(args):
    utils.init_distributed_mode(args)
    device = torch.device(args.device)
    torch.backends.cudnn.benchmark = True
    train_set, train_sampler = load_data(os.path.join(args.data, "train"), args, training=True)
    test_set, test_sampler = load_data(os.path.join(args.data, "val"), args, training=False)
    train_loader = DataLoader(train_set, batch_size=args.batch, sampler=train_sampler, num_workers=args.workers, pin_memory=True)
    test_loader = DataLoader(test_set, batch_size=args.batch, sampler=test_sampler, num_workers=args.workers, pin_memory=True)

    model = torchvision.models.get_model(args.model, num_classes=len(train_set.classes))
    model.to(device)
    if args.distributed and args.sync_bn:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=args.smoothing)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scaler = torch.cuda.amp.GradScaler() if args.amp else None  # expect: DDL113
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

    model_without_ddp = model
    if args.distributed:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
        model_without_ddp = model.module
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu")
        model_without_ddp.load_state_dict(checkpoint["model"])
        args.start_epoch = checkpoint["epoch"] + 1
    if args.test_only:
        evaluate(model, criterion, test_loader, device)
        return
    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            train_sampler.set_epoch(epoch)
        train_one_epoch(model, criterion, optimizer, train_loader, device, args, scaler)
        schedule.step()
        evaluate(model, criterion, test_loader, device)
        checkpoint = {"model": model_without_ddp.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        utils.save_on_master(checkpoint, os.path.join(args.output, f"model_{epoch}.pth"))


if __name__ == "__main__":
    main(utils.arguments().parse_args())
