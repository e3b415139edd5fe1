"""Structure of facebookresearch/DiT train.py: the device is the global rank modulo the GPUs of the node, yet device_ids takes the
global rank; an averaged copy of the model; the loss is read on every step and reduced every hundred."""

import argparse
import os
from collections import OrderedDict
from copy import deepcopy
from glob import glob

import torch
import torch.distributed as dist
from diffusers.models import AutoencoderKL
from diffusion import create_diffusion
from models import MODELS
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder


@torch.no_grad()
def follow(average, model, decay=0.9999):
    theirs = OrderedDict(model.named_parameters())
    for name, value in average.named_parameters():
        value.mul_(decay).add_(theirs[name].data, alpha=1 - decay)


def main(args):
    assert torch.cuda.is_available()
    dist.init_process_group("nccl")
    assert args.global_batch_size % dist.get_world_size() == 0
    rank = dist.get_rank()
    device = rank % torch.cuda.device_count()
    torch.manual_seed(args.seed * dist.get_world_size() + rank)
    torch.cuda.set_device(device)
    if rank == 0:
        os.makedirs(args.results, exist_ok=True)
        folder = f"{args.results}/{len(glob(args.results + '/*')):03d}"
        os.makedirs(folder, exist_ok=True)

    model = MODELS[args.model](num_classes=args.num_classes)
    average = deepcopy(model).to(device)
    average.requires_grad_(False)
    model = DDP(model.to(device), device_ids=[rank])  # expect: DDL105
    diffusion = create_diffusion(timestep_respacing="")
    encoder = AutoencoderKL.from_pretrained(args.encoder).to(device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)

    dataset = ImageFolder(args.data, transform=transforms.ToTensor())
    sampler = DistributedSampler(dataset, num_replicas=dist.get_world_size(), rank=rank, shuffle=True, seed=args.seed)
    loader = DataLoader(
        dataset, batch_size=args.global_batch_size // dist.get_world_size(), shuffle=False, sampler=sampler,
        num_workers=args.workers, pin_memory=True, drop_last=True,
    )
    follow(average, model.module, decay=0)
    model.train()
    average.eval()

    steps = logged = running = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            x = x.to(device)
            y = y.to(device)
            with torch.no_grad():
                x = encoder.encode(x).latent_dist.sample().mul_(0.18215)
            t = torch.randint(0, diffusion.num_timesteps, (x.shape[0],), device=device)
            loss = diffusion.training_losses(model, x, t, {"y": y})["loss"].mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            follow(average, model.module)

            running += loss.item()
            logged += 1
            steps += 1
            if steps % args.log_every == 0:
                torch.cuda.synchronize()
                mean = torch.tensor(running / logged, device=device)
                dist.all_reduce(mean, op=dist.ReduceOp.SUM)
                mean = mean.item() / dist.get_world_size()
                if rank == 0:
                    print(f"step {steps}: {mean:.4f}")
                running = logged = 0
            if steps % args.save_every == 0 and steps > 0:
                if rank == 0:
                    state = {"model": model.module.state_dict(), "ema": average.state_dict(), "opt": opt.state_dict()}
                    torch.save(state, f"{folder}/{steps:07d}.pt")
                dist.barrier()
    model.eval()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--results", default="results")
    parser.add_argument("--model", default="XL")
    parser.add_argument("--encoder", default="vae")
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=1400)
    parser.add_argument("--global-batch-size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=50_000)
    main(parser.parse_args())
