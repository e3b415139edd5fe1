from torch import bfloat16, optim
from torch.cuda.amp import GradScaler, autocast


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = optim.SGD(model.parameters(), lr=0.1)
        self.scaler = GradScaler()  # expect: DDL140

    def step(self, batch):
        self.optimizer.zero_grad()
        with autocast(dtype=bfloat16):
            loss = self.model(batch)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
