"""item() of numpy and of dictionaries, and an epoch loop that reads the loss once."""
from torch.nn.parallel import DistributedDataParallel as DDP


def train_epoch(model, optimizer, loader, gpu):
    total = 0
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch.to(gpu))
        loss.backward()
        optimizer.step()
        total = loss.detach()
    return total


def train(model, optimizer, loader, gpu, history, scores):
    model = DDP(model.to(gpu), device_ids=[gpu])
    for epoch in range(10):
        loss = train_epoch(model, optimizer, loader, gpu)
        history.append(loss.item())
        for name, value in scores.items():
            print(name, value.item())
