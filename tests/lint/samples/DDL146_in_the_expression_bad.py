from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, optimizer, gpu, world_size):
        self.gpu = gpu
        self.world_size = world_size
        self.model = DistributedDataParallel(model.cuda(gpu), device_ids=[gpu])
        self.optimizer = optimizer

    def step(self, batch):
        self.optimizer.zero_grad()
        loss = self.model(batch.cuda(self.gpu))
        (loss / self.world_size).backward()  # expect: DDL146
        self.optimizer.step()
