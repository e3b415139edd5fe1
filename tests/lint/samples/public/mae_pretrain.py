"""Structure of facebookresearch/mae main_pretrain.py and engine_pretrain.py: rank and device from a helper module, the loss
scaler steps every accum_iter batches, find_unused_parameters switched on for good measure, learning rate scaled with the world."""

import argparse
import math
import os
import sys

import models_mae
import torch
from timm.optim import optim_factory
from torchvision import datasets, transforms
from util import misc
from util.misc import NativeScalerWithGradNormCount as NativeScaler


def arguments():
    parser = argparse.ArgumentParser("pretrain")
    parser.add_argument("--batch_size", default=64, type=int)
    parser.add_argument("--accum_iter", default=1, type=int)
    parser.add_argument("--epochs", default=400, type=int)
    parser.add_argument("--blr", default=1e-3, type=float)
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--output_dir", default="./out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--num_workers", default=10, type=int)
    parser.add_argument("--pin_mem", action="store_true")
    parser.add_argument("--local_rank", default=-1, type=int)
    return parser


def train_one_epoch(model, loader, optimizer, device, loss_scaler, args):
    model.train(True)
    meters = misc.MetricLogger(delimiter="  ")
    optimizer.zero_grad()
    for step, (samples, _) in enumerate(meters.log_every(loader, 20, "train")):
        samples = samples.to(device, non_blocking=True)
        with torch.cuda.amp.autocast():  # expect: DDL113
            loss, _, _ = model(samples, mask_ratio=0.75)
        value = loss.item()
        if not math.isfinite(value):
            print(f"the loss is {value}, stopping")
            sys.exit(1)
        loss /= args.accum_iter
        loss_scaler(loss, optimizer, parameters=model.parameters(), update_grad=(step + 1) % args.accum_iter == 0)
        if (step + 1) % args.accum_iter == 0:
            optimizer.zero_grad()
        torch.cuda.synchronize()
        meters.update(loss=misc.all_reduce_mean(value))
    meters.synchronize_between_processes()
    return {name: meter.global_avg for name, meter in meters.meters.items()}


def main(args):
    misc.init_distributed_mode(args)
    device = torch.device(args.device)
    torch.manual_seed(args.seed + misc.get_rank())
    crop = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
    dataset = datasets.ImageFolder(os.path.join(args.data_path, "train"), transform=crop)
    sampler = torch.utils.data.DistributedSampler(
        dataset, num_replicas=misc.get_world_size(), rank=misc.get_rank(), shuffle=True
    )
    loader = torch.utils.data.DataLoader(
        dataset, sampler=sampler, batch_size=args.batch_size, num_workers=args.num_workers,
        pin_memory=args.pin_mem, drop_last=True,
    )
    model = models_mae.mae_vit_large_patch16(norm_pix_loss=True)
    model.to(device)
    model_without_ddp = model
    effective = args.batch_size * args.accum_iter * misc.get_world_size()
    rate = args.blr * effective / 256
    if args.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu], find_unused_parameters=True)  # expect: DDL127
        model_without_ddp = model.module
    groups = optim_factory.add_weight_decay(model_without_ddp, 0.05)
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))
    loss_scaler = NativeScaler()
    misc.load_model(args=args, model_without_ddp=model_without_ddp, optimizer=optimizer, loss_scaler=loss_scaler)
    for epoch in range(args.start_epoch, args.epochs):
        if args.distributed:
            loader.sampler.set_epoch(epoch)
        stats = train_one_epoch(model, loader, optimizer, device, loss_scaler, args)
        if epoch % 20 == 0 or epoch + 1 == args.epochs:
            misc.save_model(args=args, model=model, model_without_ddp=model_without_ddp, optimizer=optimizer,
                            loss_scaler=loss_scaler, epoch=epoch)
        if misc.is_main_process():
            with open(os.path.join(args.output_dir, "log.txt"), mode="a", encoding="utf-8") as log:
                log.write(f"{epoch} {stats}\n")


if __name__ == "__main__":
    main(arguments().parse_args())
