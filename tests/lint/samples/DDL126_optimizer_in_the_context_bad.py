from torch.nn.parallel import DistributedDataParallel


class Engine:
    def __init__(self, net, optimizer, rank):
        self.net = DistributedDataParallel(net.to(rank), device_ids=[rank])
        self.optimizer = optimizer

    def window(self, micro_batches):
        with self.net.no_sync():  # expect: DDL126
            for batch in micro_batches:
                self.net(batch).mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
