"""nanoGPT's way: the switch that no_sync() itself turns."""
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, get_batch, max_iters, local_rank, gradient_accumulation_steps=8):
    model = DDP(model.cuda(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(max_iters):
        for micro_step in range(gradient_accumulation_steps):
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
            x, y = get_batch("train")
            _, loss = model(x.cuda(local_rank), y.cuda(local_rank))
            (loss / gradient_accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
