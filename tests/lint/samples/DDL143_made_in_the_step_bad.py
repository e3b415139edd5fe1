from torch.cuda.amp import GradScaler, autocast


def train_step(model, optimizer, batch):
    scaler = GradScaler()  # expect: DDL143
    with autocast():
        loss = model(batch)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def train(model, optimizer, loader):
    for batch in loader:
        train_step(model, optimizer, batch)
