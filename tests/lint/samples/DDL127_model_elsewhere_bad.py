import os

from torch.nn.parallel import DistributedDataParallel

from mymodels import build_model


def main(config):
    local_rank = int(os.environ["LOCAL_RANK"])
    model = build_model(config).to(local_rank)
    model = DistributedDataParallel(  # expect: DDL127
        model,
        device_ids=[local_rank],
        find_unused_parameters=True,
    )
    return model
