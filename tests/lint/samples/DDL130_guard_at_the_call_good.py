"""Every call of the function that saves stands behind the rank."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Trainer:
    def __init__(self, model, gpu_id):
        dist.init_process_group("nccl")
        self.gpu_id = gpu_id
        self.model = DistributedDataParallel(model.to(gpu_id), device_ids=[gpu_id])

    def _save_checkpoint(self, epoch):
        torch.save(self.model.module.state_dict(), "checkpoint.pt")
        print(f"epoch {epoch} saved")

    def train(self, loader, max_epochs, save_every):
        for epoch in range(max_epochs):
            for batch in loader:
                self.model(batch.to(self.gpu_id)).backward()
            if self.gpu_id == 0 and epoch % save_every == 0:
                self._save_checkpoint(epoch)
