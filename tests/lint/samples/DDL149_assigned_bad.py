import os

import torch
from torch.utils.data import DataLoader


class Setup:
    def __init__(self, args, model, dataset, sampler):
        self.world_size = int(os.environ["WORLD_SIZE"])
        args.batch_size = int(args.batch_size / self.world_size)
        args.lr = args.lr * self.world_size  # expect: DDL149
        self.loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
