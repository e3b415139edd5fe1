import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class BaseModel:
    def __init__(self, options):
        self.options = options
        self.device = torch.device("cuda" if options["gpus"] else "cpu")

    def placed(self, net):
        net = net.to(self.device)
        if self.options["distributed"]:
            return DDP(net, device_ids=[torch.cuda.current_device()])
        return net
