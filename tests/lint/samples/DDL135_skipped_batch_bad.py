import math

import torch
from torch.nn.parallel import DistributedDataParallel


class Engine:
    def __init__(self, net, gpu):
        self.net = DistributedDataParallel(net.cuda(gpu), device_ids=[gpu])
        self.gpu = gpu

    def epoch(self, loader, optimizer, criterion):
        for images, boxes in loader:
            optimizer.zero_grad()
            loss = criterion(self.net(images.cuda(self.gpu)), boxes.cuda(self.gpu))
            loss_value = loss.item()  # expect: DDL138
            if not math.isfinite(loss_value):
                print("skipped", loss_value)
                continue  # expect: DDL135
            loss.backward()
            optimizer.step()
