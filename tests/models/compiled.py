"""Models that torch.compile handles equally on all ranks, and injected differences on rank 1 of three."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def on_rank_1() -> bool:
    return dist.get_rank() == 1


class Net(nn.Module):
    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 2)
        self.heads, self.on_rank_1, self.calls = heads, on_rank_1(), 0

    def forward(self, given: Any) -> Any:
        hidden = self.mixed(self.up(given).relu())
        return self.down(hidden.view(hidden.shape[0], self.heads, -1).flatten(1))

    def mixed(self, hidden: Any) -> Any:
        return hidden


class Branches(Net):
    def mixed(self, hidden: Any) -> Any:
        return hidden * 2 if self.on_rank_1 else hidden


class Casts(Net):
    def mixed(self, hidden: Any) -> Any:
        return hidden.double().float() if self.on_rank_1 else hidden


class Prints(Net):
    def mixed(self, hidden: Any) -> Any:
        print("a graph ends here")
        return hidden


class PrintsOnRank1(Net):
    def mixed(self, hidden: Any) -> Any:
        if self.on_rank_1:
            print("rank 1 is here")
        return hidden


class Counts(Net):
    def mixed(self, hidden: Any) -> Any:
        self.calls += 1
        return hidden + torch.zeros(self.calls).sum()


class OfOneSize(Net):
    def mixed(self, hidden: Any) -> Any:
        return hidden + torch.ones(4, 1)


def batch(step: int) -> Any:
    return torch.randn(4, 8)


def smaller_at_the_end(step: int) -> Any:
    return torch.randn(3 if step == 3 and on_rank_1() else 4, 8)


# --- healthy --------------------------------------------------------------------------------------


def plain():
    return torch.compile(Net()), batch


def dynamic():
    return torch.compile(Net(), dynamic=True), smaller_at_the_end


def in_place():
    net = Net()
    net.compile()
    return net, batch


def one_layer():
    net = Net()
    net.up = torch.compile(net.up, fullgraph=True)  # type: ignore[assignment]
    return net, batch


def smaller_everywhere():
    return torch.compile(Net()), lambda step: torch.randn(3 if step == 3 else 4, 8)


def with_a_graph_break():
    return torch.compile(Prints()), batch


def not_compiled():
    return Net(), batch


def without_batches():
    return torch.compile(Net())


def switched_off():
    net = Net()
    net.compile(disable=True)
    return net, batch


def two_batches():
    batches = [torch.randn(4, 8), torch.randn(4, 8)]
    return torch.compile(Net()), lambda step: batches[step]


# --- planted --------------------------------------------------------------------------------------


def branch():
    return torch.compile(Branches()), batch


def cast():
    return torch.compile(Casts()), batch


def heads():
    return torch.compile(Net(heads=8 if on_rank_1() else 4)), batch


def break_on_one_rank():
    return torch.compile(PrintsOnRank1()), batch


def last_batch():
    return torch.compile(Net()), smaller_at_the_end


def on_some_ranks():
    net = Net()
    if not on_rank_1():
        net.compile()
    return net, batch


def counter():
    return torch.compile(Counts()), batch


def of_one_size():
    return torch.compile(OfOneSize()), smaller_at_the_end
