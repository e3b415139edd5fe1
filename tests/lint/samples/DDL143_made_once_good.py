import torch


def train(model, optimizer, loader, epochs):
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(epochs):
        for batch in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(batch)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
