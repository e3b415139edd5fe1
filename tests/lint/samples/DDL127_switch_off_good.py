from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 2)

    def forward(self, x):
        return self.fc(x)


def wrap(local_rank, args):
    plain = DDP(Net().to(local_rank), device_ids=[local_rank], find_unused_parameters=False)
    asked = DDP(Net().to(local_rank), device_ids=[local_rank], find_unused_parameters=args.find_unused)
    return plain, asked
