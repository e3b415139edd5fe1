import torch
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, loader, args, gpu):
        self.gpu = gpu
        self.args = args
        self.loader = loader
        self.model = DistributedDataParallel(model.cuda(gpu), device_ids=[gpu])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr)

    def train_epoch(self):
        self.optimizer.zero_grad()
        for step, batch in enumerate(self.loader):
            loss = self.model(batch["pixels"].cuda(self.gpu), batch["label"].cuda(self.gpu))
            loss = loss / self.args.accum_iter
            loss.backward()  # expect: DDL124
            if step % self.args.accum_iter == self.args.accum_iter - 1:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
