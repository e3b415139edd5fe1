import torch


def train(generator, critic, generator_optimizer, critic_optimizer, loader):
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = generator(batch)
        scaler.scale(loss).backward()
        scaler.step(generator_optimizer)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = critic(batch)
        scaler.scale(loss).backward()
        scaler.step(critic_optimizer)
        scaler.update()
