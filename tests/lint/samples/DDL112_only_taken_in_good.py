import argparse

import torch
from helpers import start_distributed
from torch.nn.parallel import DistributedDataParallel as DDP


def main(args):
    start_distributed(args)
    model = torch.nn.Linear(8, 2).to(args.gpu)
    return DDP(model, device_ids=[args.gpu])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", default=0, type=int)
    main(parser.parse_args())
