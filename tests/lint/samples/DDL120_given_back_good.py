from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def build(net, train_set, optimizer, engine, gpu):
    """The engine shards: it makes a loader of its own of the one that it is given."""
    net = DistributedDataParallel(net.to(gpu), device_ids=[gpu])
    train_loader = DataLoader(train_set, batch_size=64, num_workers=2, pin_memory=True)
    net, optimizer, train_loader = engine.make_private(
        module=net, optimizer=optimizer, data_loader=train_loader
    )
    return net, optimizer, train_loader
