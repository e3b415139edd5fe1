import torch
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.no_grad()
def evaluate(model, loader, gpu):
    for images in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            model(images.to(gpu))


def train(model, loader, local_rank, dtype, loss_scaler):
    model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            model(images.to(local_rank)).backward()
        with torch.autocast("cuda", dtype=dtype):
            loss = model(images.to(local_rank))
        loss_scaler(loss, optimizer)
        optimizer.step()
