import torch
from torch import nn
from torch.utils.data import DataLoader


def main(dataset):
    model = nn.Linear(8, 2)
    if torch.cuda.device_count() > 1:
        model = nn.DataParallel(model)  # expect: DDL101
    model.to("cuda")
    for images, labels in DataLoader(dataset, batch_size=64, shuffle=True):
        loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
        loss.backward()
