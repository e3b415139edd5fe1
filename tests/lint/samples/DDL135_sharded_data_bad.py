import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(net, dataset, optimizer, gpu):
    net = DistributedDataParallel(net.to(gpu), device_ids=[gpu])
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=4, pin_memory=True)
    for epoch in range(20):
        sampler.set_epoch(epoch)
        for images, masks in loader:
            images, masks = images.to(gpu), masks.to(gpu)
            optimizer.zero_grad()
            scores = F.interpolate(net(images)["out"], size=masks.shape[-2:])
            loss = F.cross_entropy(scores, masks)
            if torch.isnan(loss):
                continue  # expect: DDL135
            loss.backward()
            optimizer.step()
