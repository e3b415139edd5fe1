import os

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(net, loader, optimizer, writer):
    local_rank = int(os.environ["LOCAL_RANK"])
    model = DDP(net.to(local_rank), device_ids=[local_rank])
    for step, batch in enumerate(loader):
        output = model(batch)
        loss = output.mean()
        loss.backward()
        optimizer.step()
        print(f"step {step}: {output.shape} {loss.dtype}")
        if step % 100 == 0 and dist.get_rank() == 0:
            writer.add_scalar("loss", loss, step)
