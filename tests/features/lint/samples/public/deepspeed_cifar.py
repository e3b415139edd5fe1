"""Structure of microsoft/DeepSpeedExamples training/cifar/cifar10_deepspeed.py: the launcher hands over --local_rank, the first rank
downloads while the others stand at a barrier, deepspeed.initialize makes engine and loader."""

import argparse

import deepspeed
import torch
import torch.nn.functional as F
from deepspeed.accelerator import get_accelerator
from torch import nn
from torchvision import datasets, transforms


def arguments():
    parser = argparse.ArgumentParser(description="CIFAR")
    parser.add_argument("-e", "--epochs", default=30, type=int)
    parser.add_argument("--local_rank", type=int, default=-1, help="passed by the launcher")
    parser.add_argument("--log-interval", type=int, default=2000)
    parser.add_argument("--dtype", default="fp16", choices=["bf16", "fp16", "fp32"])
    parser.add_argument("--stage", default=0, type=int, choices=[0, 1, 2, 3])
    return deepspeed.add_config_arguments(parser).parse_args()


def config_of(args):
    return {
        "train_batch_size": 16,
        "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
        "gradient_clipping": 1.0,
        "bf16": {"enabled": args.dtype == "bf16"},
        "fp16": {"enabled": args.dtype == "fp16", "loss_scale": 0, "initial_scale_power": 15},
        "zero_optimization": {"stage": args.stage},
    }


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.norm = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc = nn.Linear(16 * 5 * 5, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def test(engine, test_set, device, dtype):
    loader = torch.utils.data.DataLoader(test_set, batch_size=4, shuffle=False, num_workers=0)
    engine.eval()
    right = total = 0
    with torch.no_grad():
        for images, labels in loader:
            if dtype is not None:
                images = images.to(dtype)
            outputs = engine(images.to(device))
            right += (outputs.argmax(1) == labels.to(device)).sum().item()
            total += labels.size(0)
    if engine.local_rank == 0:
        print(f"{right} of {total}")


def main(args):
    deepspeed.init_distributed()
    local_rank = args.local_rank
    get_accelerator().set_device(local_rank)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])
    if torch.distributed.get_rank() != 0:
        torch.distributed.barrier()
    train_set = datasets.CIFAR10(root="./data", train=True, download=True, transform=transform)
    test_set = datasets.CIFAR10(root="./data", train=False, download=True, transform=transform)
    if torch.distributed.get_rank() == 0:
        torch.distributed.barrier()

    net = Net()
    parameters = filter(lambda p: p.requires_grad, net.parameters())
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=net, model_parameters=parameters, training_data=train_set, config=config_of(args)
    )
    device = get_accelerator().device_name(engine.local_rank)
    dtype = torch.bfloat16 if engine.bfloat16_enabled() else torch.half if engine.fp16_enabled() else None
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        running = 0.0
        for i, data in enumerate(loader):
            images, labels = data[0].to(device), data[1].to(device)
            if dtype is not None:
                images = images.to(dtype)
            loss = criterion(engine(images), labels)
            engine.backward(loss)
            engine.step()
            running += loss.item()
            if local_rank == 0 and i % args.log_interval == args.log_interval - 1:
                print(f"[{epoch + 1}, {i + 1}] loss: {running / args.log_interval:.3f}")
                running = 0.0
        engine.save_checkpoint("out", tag=f"epoch{epoch}")
    test(engine, test_set, device, dtype)


if __name__ == "__main__":
    main(arguments())
