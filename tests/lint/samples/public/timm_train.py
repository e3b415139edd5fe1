"""Structure of huggingface/pytorch-image-models train.py: group, loaders and saving behind the library's own functions, wrappers under
other names, averaged weights before wrapping, batch-norm statistics spread after each epoch."""

import argparse
import logging
from contextlib import suppress
from functools import partial

import torch
from timm import utils
from timm.data import create_dataset, create_loader
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV2, NativeScaler
from torch import nn
from torch.nn.parallel import DistributedDataParallel as NativeDDP

_logger = logging.getLogger("train")


def main(args):
    device = utils.init_distributed_device(args)
    utils.random_seed(args.seed, args.rank)
    model = create_model(args.model, num_classes=args.num_classes)
    model.to(device=device)
    if args.channels_last:
        model.to(memory_format=torch.channels_last)
    if args.distributed and args.sync_bn:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
    optimizer = create_optimizer_v2(model, lr=args.lr)
    autocast, scaler = suppress, None
    if args.amp:
        autocast = partial(torch.autocast, device_type=device.type, dtype=torch.float16)
        scaler = NativeScaler(device=device.type)
    average = ModelEmaV2(model, decay=0.9998) if args.model_ema else None
    if args.distributed:
        model = NativeDDP(model, device_ids=[device], broadcast_buffers=not args.no_ddp_bb)
    train_set = create_dataset(args.dataset, root=args.data_dir, split="train", is_training=True)
    eval_set = create_dataset(args.dataset, root=args.data_dir, split="validation", is_training=False)
    train_loader = create_loader(train_set, batch_size=args.batch_size, is_training=True, distributed=args.distributed)
    eval_loader = create_loader(eval_set, batch_size=args.batch_size, is_training=False, distributed=args.distributed)
    loss_fn = nn.CrossEntropyLoss().to(device=device)
    schedule, epochs = create_scheduler_v2(optimizer, num_epochs=args.epochs)
    saver = None
    if utils.is_primary(args):
        saver = utils.CheckpointSaver(model=model, optimizer=optimizer, args=args, model_ema=average, amp_scaler=scaler)
    try:
        for epoch in range(epochs):
            if hasattr(train_set, "set_epoch"):
                train_set.set_epoch(epoch)
            elif args.distributed and hasattr(train_loader.sampler, "set_epoch"):
                train_loader.sampler.set_epoch(epoch)
            train_one_epoch(epoch, model, train_loader, optimizer, loss_fn, args, device, autocast, scaler, average)
            if args.distributed and args.dist_bn in ("broadcast", "reduce"):
                utils.distribute_bn(model, args.world_size, args.dist_bn == "reduce")
            metric = validate(model, eval_loader, args, device, autocast)
            if saver is not None:
                saver.save_checkpoint(epoch, metric=metric)
            schedule.step(epoch + 1, metric)
    except KeyboardInterrupt:
        pass


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, device, autocast, scaler, average):
    accum_steps = args.grad_accum_steps
    has_no_sync = hasattr(model, "no_sync")
    model.train()
    optimizer.zero_grad()
    for index, (images, target) in enumerate(loader):
        need_update = (index + 1) % accum_steps == 0 or index == len(loader) - 1
        if not args.prefetcher:
            images, target = images.to(device), target.to(device)

        def forward(images=images, target=target):
            with autocast():
                return loss_fn(model(images), target) / accum_steps

        def backward(loss, need_update=need_update):
            if scaler is not None:
                scaler(loss, optimizer, parameters=model.parameters(), need_update=need_update)
            else:
                loss.backward()
                if need_update:
                    optimizer.step()

        if has_no_sync and not need_update:
            with model.no_sync():
                backward(forward())
        else:
            loss = forward()
            backward(loss)
        if not need_update:
            continue
        optimizer.zero_grad()
        if average is not None:
            average.update(model)
        if index % args.log_interval == 0:
            value = utils.reduce_tensor(loss.detach(), args.world_size).item() if args.distributed else loss.item()
            if utils.is_primary(args):
                _logger.info("%s %s: %.4f", epoch, index, value)


def validate(model, loader, args, device, autocast):
    model.eval()
    right = torch.zeros((), device=device)
    with torch.no_grad():
        for images, target in loader:
            if not args.prefetcher:
                images, target = images.to(device), target.to(device)
            with autocast():
                right += (model(images).argmax(1) == target).float().mean()
    if args.distributed:
        right = utils.reduce_tensor(right, args.world_size)
    return right.item() / len(loader)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir")
    parser.add_argument("--dataset", default="")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--local-rank", default=0, type=int)
    parser.add_argument("--grad-accum-steps", type=int, default=1)
    parser.add_argument("--sync-bn", action="store_true")
    parser.add_argument("--dist-bn", default="reduce")
    main(parser.parse_args())
