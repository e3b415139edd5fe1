"""Structure of karpathy/nanoGPT train.py: a flat script, DDP only where RANK is set, batches drawn at random from a memory map,
accumulation by setting require_backward_grad_sync, evaluation and saving by the first rank."""

import math
import os
from contextlib import nullcontext

import numpy as np
import torch
from model import GPT, GPTConfig
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

folder, resume = "out", False
eval_every, eval_steps, log_every, last_step = 2000, 200, 1, 600000
micro_steps, batch, context = 5 * 8, 12, 1024
rate, clip, dtype, device = 6e-4, 1.0, "bfloat16", "cuda"

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    device = f"cuda:{local_rank}"
    torch.cuda.set_device(device)
    master = rank == 0
    seed_offset = rank
    assert micro_steps % world_size == 0
    micro_steps //= world_size
else:
    master, seed_offset, world_size = True, 0, 1

if master:
    os.makedirs(folder, exist_ok=True)
torch.manual_seed(1337 + seed_offset)
device_type = "cuda" if "cuda" in device else "cpu"
number = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
cast = nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type=device_type, dtype=number)


def draw(split):
    tokens = np.memmap(f"{split}.bin", dtype=np.uint16, mode="r")
    at = torch.randint(len(tokens) - context, (batch,))
    x = torch.stack([torch.from_numpy(tokens[i : i + context].astype(np.int64)) for i in at])
    y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + context].astype(np.int64)) for i in at])
    if device_type == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x.to(device), y.to(device)


step, best = 0, 1e9
if resume:
    checkpoint = torch.load(os.path.join(folder, "ckpt.pt"), map_location=device)
    model = GPT(GPTConfig(**checkpoint["shape"]))
    model.load_state_dict(checkpoint["model"])
    step, best = checkpoint["step"], checkpoint["best"]
else:
    model = GPT(GPTConfig(block_size=context))
model.to(device)
scaler = torch.cuda.amp.GradScaler(enabled=(dtype == "float16"))  # expect: DDL113
optimizer = model.configure_optimizers(1e-1, rate, (0.9, 0.95), device_type)
model = torch.compile(model)
if ddp:
    model = DDP(model, device_ids=[local_rank])


@torch.no_grad()
def evaluate():
    means = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_steps)
        for k in range(eval_steps):
            x, y = draw(split)
            with cast:
                _, loss = model(x, y)  # expect: DDL133
            losses[k] = loss.item()
        means[split] = losses.mean()
    model.train()
    return means


raw = model.module if ddp else model
x, y = draw("train")
while True:
    for group in optimizer.param_groups:
        group["lr"] = rate * 0.5 * (1.0 + math.cos(math.pi * step / last_step))
    if step % eval_every == 0 and master:
        means = evaluate()
        print(f"step {step}: {means['train']:.4f} {means['val']:.4f}")
        if means["val"] < best:
            best = means["val"]
            if step > 0:
                torch.save({"model": raw.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "best": best},
                           os.path.join(folder, "ckpt.pt"))
    for micro in range(micro_steps):
        if ddp:
            model.require_backward_grad_sync = micro == micro_steps - 1
        with cast:
            _, loss = model(x, y)
            loss = loss / micro_steps
        x, y = draw("train")
        scaler.scale(loss).backward()
    if clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if step % log_every == 0 and master:
        print(f"step {step}: loss {loss.item() * micro_steps:.4f}")
    step += 1
    if step > last_step:
        break

if ddp:
    destroy_process_group()
