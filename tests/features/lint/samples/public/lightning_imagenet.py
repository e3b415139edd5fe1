"""Structure of Lightning-AI/pytorch-lightning examples/pytorch/domain_templates/imagenet.py: a LightningModule whose Trainer
starts the processes, wraps the model, moves the batches and puts a DistributedSampler under the loaders."""

import os

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.strategies import ParallelStrategy
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import Accuracy
from torchvision import datasets, models, transforms


class Classifier(LightningModule):
    def __init__(self, folder: str, arch: str = "resnet18", lr: float = 0.1, batch: int = 256, workers: int = 4):
        super().__init__()
        self.folder, self.lr, self.batch, self.workers = folder, lr, batch, workers
        self.model = models.get_model(arch)
        self.neck = nn.BatchNorm1d(1000)
        self.train_accuracy = Accuracy(task="multiclass", num_classes=1000)
        self.eval_accuracy = Accuracy(task="multiclass", num_classes=1000)

    def forward(self, x):
        return self.neck(self.model(x))

    def training_step(self, batch, batch_idx):
        images, target = batch
        output = self(images)
        loss = F.cross_entropy(output, target)
        self.train_accuracy(output, target)
        self.log("train_loss", loss)
        self.log("train_accuracy", self.train_accuracy, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        images, target = batch
        output = self(images)
        self.eval_accuracy(output, target)
        self.log("val_loss", F.cross_entropy(output, target), sync_dist=True)
        self.log("val_accuracy", self.eval_accuracy, prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.1 ** (epoch // 30))
        return [optimizer], [schedule]

    def setup(self, stage: str):
        if isinstance(self.trainer.strategy, ParallelStrategy):
            processes = max(1, self.trainer.strategy.num_processes)
            self.batch = int(self.batch / processes)
            self.workers = int(self.workers / processes)
        crop = transforms.Compose([transforms.RandomResizedCrop(224), transforms.ToTensor()])
        centre = transforms.Compose([transforms.CenterCrop(224), transforms.ToTensor()])
        if stage == "fit":
            self.train_set = datasets.ImageFolder(os.path.join(self.folder, "train"), crop)
        self.eval_set = datasets.ImageFolder(os.path.join(self.folder, "val"), centre)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch, shuffle=True, num_workers=self.workers, pin_memory=True)

    def val_dataloader(self):
        return DataLoader(self.eval_set, batch_size=self.batch, num_workers=self.workers, pin_memory=True)

    def test_dataloader(self):
        return self.val_dataloader()


if __name__ == "__main__":
    LightningCLI(
        Classifier,
        trainer_defaults={
            "max_epochs": 90,
            "accelerator": "gpu",
            "devices": -1,
            "strategy": "ddp",
            "callbacks": [ModelCheckpoint(monitor="val_accuracy", mode="max")],
        },
        seed_everything_default=42,
    )
