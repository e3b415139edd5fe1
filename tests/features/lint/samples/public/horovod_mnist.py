"""Structure of horovod/horovod examples/pytorch/pytorch_mnist.py: Horovod's own ranks, its optimizer in place of DDP, its
broadcast of the first state, DistributedSampler told the ranks by hand."""

import argparse

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import nn, optim
from torchvision import datasets, transforms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 10, kernel_size=5)
        self.drop = nn.Dropout2d()
        self.fc1 = nn.Linear(1440, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.drop(self.conv(x)), 2)).flatten(1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(epoch, model, loader, sampler, optimizer, scaler, args):
    model.train()
    sampler.set_epoch(epoch)
    for step, (data, target) in enumerate(loader):
        if args.cuda:
            data, target = data.cuda(), target.cuda()
        optimizer.zero_grad()
        if scaler is not None:
            with torch.cuda.amp.autocast():
                loss = F.nll_loss(model(data), target)
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        else:
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
        if step % args.log_interval == 0 and hvd.rank() == 0:
            print(f"{epoch} {step}: {loss.item():.6f}")


def mean_of(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def test(model, loader, sampler, args):
    model.eval()
    total, right = 0.0, 0.0
    for data, target in loader:
        if args.cuda:
            data, target = data.cuda(), target.cuda()
        output = model(data)
        total += F.nll_loss(output, target, reduction="sum").item()
        right += output.argmax(1).eq(target).cpu().float().sum().item()
    total, right = mean_of(total / len(sampler), "loss"), mean_of(right / len(sampler), "accuracy")
    if hvd.rank() == 0:
        print(f"loss {total:.4f}, accuracy {right:.2%}")


def main(args):
    hvd.init()
    torch.manual_seed(args.seed)
    if args.cuda:
        torch.cuda.set_device(hvd.local_rank())
        torch.cuda.manual_seed(args.seed)
    torch.set_num_threads(1)
    options = {"num_workers": 1, "pin_memory": True} if args.cuda else {}
    train_set = datasets.MNIST(args.data, train=True, download=True, transform=transforms.ToTensor())
    test_set = datasets.MNIST(args.data, train=False, transform=transforms.ToTensor())
    train_sampler = torch.utils.data.distributed.DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    test_sampler = torch.utils.data.distributed.DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = torch.utils.data.DataLoader(train_set, batch_size=64, sampler=train_sampler, **options)
    test_loader = torch.utils.data.DataLoader(test_set, batch_size=1000, sampler=test_sampler, **options)
    model = Net()
    if args.cuda:
        model.cuda()
    optimizer = optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
    scaler = torch.cuda.amp.GradScaler() if args.mixed else None
    for epoch in range(1, args.epochs + 1):
        train(epoch, model, train_loader, train_sampler, optimizer, scaler, args)
        test(model, test_loader, test_sampler, args)
    if hvd.rank() == 0:
        torch.save(model.state_dict(), "mnist.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="MNIST")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--data", default="./data")
    arguments = parser.parse_args()
    arguments.cuda = torch.cuda.is_available()
    main(arguments)
