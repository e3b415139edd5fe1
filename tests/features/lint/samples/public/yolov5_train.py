"""Structure of ultralytics/yolov5 train.py with utils/dataloaders.py and utils/torch_utils.py: ranks as module constants that are -1
outside torchrun, a context manager that lets the first rank go ahead, warm-up that accumulates, validation and saving by the
first rank, stopping decided by the first rank and told to all."""

import argparse
import os
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import val
from data import Images, check_dataset
from ema import ModelEMA
from losses import ComputeLoss
from models import Detector
from stopping import EarlyStopping
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, distributed
from tqdm import tqdm

LOCAL_RANK = int(os.getenv("LOCAL_RANK", "-1"))
RANK = int(os.getenv("RANK", "-1"))
WORLD_SIZE = int(os.getenv("WORLD_SIZE", "1"))


@contextmanager
def zero_first(local_rank):
    if local_rank not in {-1, 0}:
        dist.barrier(device_ids=[local_rank])
    yield
    if local_rank == 0:
        dist.barrier(device_ids=[0])


def make_loader(path, batch, rank, workers, shuffle=False):
    with zero_first(rank):
        images = Images(path)
    sampler = None if rank == -1 else distributed.DistributedSampler(images, shuffle=shuffle)
    generator = torch.Generator()
    generator.manual_seed(6148914691236517205 + RANK)
    return DataLoader(images, batch_size=min(batch, len(images)), shuffle=shuffle and sampler is None,
                      num_workers=workers, sampler=sampler, pin_memory=True, generator=generator)


def bare(model):
    return model.module if isinstance(model, (nn.DataParallel, DDP)) else model


def train(opt, device):
    last = os.path.join(opt.save_dir, "last.pt")
    with zero_first(LOCAL_RANK):
        data = check_dataset(opt.data)
    if opt.weights.endswith(".pt"):
        model = Detector(opt.cfg).to(device)
        saved = torch.load(opt.weights, map_location="cpu")
        model.load_state_dict(saved["model"].float().state_dict(), strict=False)
    else:
        model = Detector(opt.cfg).to(device)
    nominal = 64
    accumulate = max(round(nominal / opt.batch_size), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
    ema = ModelEMA(model) if RANK in {-1, 0} else None
    cuda = device.type != "cpu"
    if cuda and RANK == -1 and torch.cuda.device_count() > 1:
        print("DataParallel is not recommended, use torchrun")
        model = torch.nn.DataParallel(model)
    if opt.sync_bn and cuda and RANK != -1:
        model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model).to(device)
    loader = make_loader(data["train"], opt.batch_size // WORLD_SIZE, LOCAL_RANK, opt.workers, shuffle=True)
    if RANK in {-1, 0}:
        val_loader = make_loader(data["val"], opt.batch_size // WORLD_SIZE * 2, -1, opt.workers * 2)
    if cuda and RANK != -1:
        model = DDP(model, device_ids=[LOCAL_RANK], output_device=LOCAL_RANK)
    steps = len(loader)
    warm = max(3 * steps, 100)
    stepped = -1
    best = 0.0
    scaler = torch.cuda.amp.GradScaler(enabled=cuda)  # expect: DDL113
    stopper, stop = EarlyStopping(opt.patience), False
    criterion = ComputeLoss(model)
    for epoch in range(opt.epochs):
        model.train()
        if RANK != -1:
            loader.sampler.set_epoch(epoch)
        bar = enumerate(loader)
        if RANK in {-1, 0}:
            bar = tqdm(bar, total=steps)
        optimizer.zero_grad()
        for i, (images, targets) in bar:
            done = i + steps * epoch
            images = images.to(device, non_blocking=True).float() / 255
            if done <= warm:
                accumulate = max(1, np.interp(done, [0, warm], [1, nominal / opt.batch_size]).round())
            with torch.cuda.amp.autocast(cuda):  # expect: DDL113
                loss = criterion(model(images), targets.to(device))
                if RANK != -1:
                    loss *= WORLD_SIZE
            scaler.scale(loss).backward()
            if done - stepped >= accumulate:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if ema:
                    ema.update(model)
                stepped = done
        if RANK in {-1, 0}:
            fitness = val.run(data, model=ema.ema, loader=val_loader, compute_loss=criterion)
            stop = stopper(epoch=epoch, fitness=fitness)
            best = max(best, fitness)
            state = {"epoch": epoch, "model": deepcopy(bare(model)).half(), "optimizer": optimizer.state_dict()}
            torch.save(state, last)
        if RANK != -1:
            told = [stop if RANK == 0 else None]
            dist.broadcast_object_list(told, 0)
            if RANK != 0:
                stop = told[0]
        if stop:
            break
    torch.cuda.empty_cache()
    return best


def main(opt):
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if LOCAL_RANK != -1:
        assert torch.cuda.device_count() > LOCAL_RANK, "not enough GPUs"
        torch.cuda.set_device(LOCAL_RANK)
        device = torch.device("cuda", LOCAL_RANK)
        dist.init_process_group(backend="nccl" if dist.is_nccl_available() else "gloo", timeout=timedelta(seconds=10800))
    train(opt, device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default="small.pt")
    parser.add_argument("--cfg", default="")
    parser.add_argument("--data", default="coco.yaml")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--sync-bn", action="store_true")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--patience", type=int, default=100)
    parser.add_argument("--save_dir", default="runs")
    main(parser.parse_args())
