"""Lightning calls set_epoch itself."""
import lightning.pytorch as pl
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Data(pl.LightningDataModule):
    def __init__(self, dataset):
        super().__init__()
        self.dataset = dataset

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=8, sampler=DistributedSampler(self.dataset))


def main(model, dataset, seeds):
    for epoch in range(3):
        trainer = pl.Trainer(max_epochs=epoch, strategy="ddp", devices=4, use_distributed_sampler=False)
        trainer.fit(model, datamodule=Data(dataset))
