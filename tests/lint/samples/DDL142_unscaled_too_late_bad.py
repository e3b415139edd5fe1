from torch.cuda.amp import GradScaler, autocast
from torch.nn.utils import clip_grad_norm_


class Engine:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.scaler = GradScaler()

    def step(self, batch):
        with autocast():
            loss = self.model(batch)
        self.scaler.scale(loss).backward()
        clip_grad_norm_(self.model.parameters(), 1.0)  # expect: DDL142
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
