import torchvision.models as models
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def build(dataset, sampler, val_set, local_rank):
    model = models.resnet18().to(local_rank)
    model = DistributedDataParallel(model, device_ids=[local_rank])
    train = DataLoader(dataset, batch_size=128, sampler=sampler, num_workers=2, pin_memory=True)
    val = DataLoader(val_set, batch_size=1)
    return model, train, val
