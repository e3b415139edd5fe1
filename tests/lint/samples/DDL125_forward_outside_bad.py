import torch
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, local_rank, accumulation):
    ddp_model = DDP(model.to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    for i, (inputs, target) in enumerate(loader):
        outputs = ddp_model(inputs.to(local_rank))
        loss = torch.nn.functional.mse_loss(outputs, target.to(local_rank)) / accumulation
        if (i + 1) % accumulation != 0:
            with ddp_model.no_sync():  # expect: DDL125
                loss.backward()
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
