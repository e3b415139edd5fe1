"""Healthy models as users write them, in the forms that other models do not have."""

import copy
from collections import UserDict
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

from tests.models.healthy import Transformer


class Adversaries(nn.Module):
    """A generator and a discriminator in one module, whose losses are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 6))
        self.discriminator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1))

    def forward(self, noise: Any, real: Any) -> Any:
        made = self.generator(noise)
        judged = self.discriminator(torch.cat([made.detach(), real]))
        of_the_real = torch.cat([torch.zeros(len(made), 1), torch.ones(len(real), 1)])
        compare = nn.functional.binary_cross_entropy_with_logits
        fooled = compare(self.discriminator(made), torch.ones(len(made), 1))
        return {"discriminator": compare(judged, of_the_real), "generator": fooled}


def adversaries():
    return Adversaries(), lambda step: (torch.randn(5, 4), torch.randn(5, 6))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 6, num_layers=2, batch_first=True, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(12, 3)

    def forward(self, given: Any) -> Any:
        _, (hidden, _) = self.cells(given)
        return self.head(hidden[-2:].transpose(0, 1).flatten(1))


def recurrent():
    return Recurrent(), lambda step: torch.randn(3, 5, 4)


def recurrent_packed():
    return Recurrent(), lambda step: pack_sequence([torch.randn(5, 4), torch.randn(3, 4)])


class UnevenExperts(nn.Module):
    """All experts take part; the gate chooses the number of samples for each, possibly none."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(3))

    def forward(self, x: Any) -> Any:
        share, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            out = out.index_put((mask,), share[mask, None] * expert(x[mask]))
        return out.square().mean(), {"of each": [int((chosen == one).sum()) for one in range(3)]}


def uneven_experts():
    return UnevenExperts(), lambda step: torch.randn(7, 8)


class Rotary(nn.Module):
    """Attention with a complex buffer of rotations."""

    rotations: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(6), 1.0 / 10 ** torch.arange(0.0, 1.0, 0.25))
        self.register_buffer("rotations", torch.polar(torch.ones_like(angles), angles), persistent=False)
        self.query = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        turned = torch.view_as_complex(self.query(x).unflatten(-1, (4, 2))) * self.rotations
        return torch.view_as_real(turned).flatten(-2)


def rotary():
    return Rotary(), lambda step: torch.randn(3, 6, 8)


def parametrised():
    """Weight and spectral normalization, the latter with a buffer that each forward changes."""
    net = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 6)),
        nn.ReLU(inplace=True),
        parametrizations.spectral_norm(nn.Linear(6, 6)),
        nn.Tanh(),
        parametrizations.orthogonal(nn.Linear(6, 6)),
    )
    return net, lambda step: torch.randn(8, 4)


def normalised_by_hooks():
    net = nn.Sequential(nn.utils.spectral_norm(nn.Conv1d(2, 3, 1)), nn.ReLU(inplace=True))
    return net, lambda step: torch.randn(8, 2, 5)


def watched_on_the_first_rank():
    """A logger that reads gradients on rank 0 only and does not change them."""
    net = nn.Linear(4, 4)
    seen: list[float] = []
    weight: Any = net.weight
    if dist.get_rank() == 0:
        weight.register_hook(lambda gradient: seen.append(float(gradient.norm())))
    return net, lambda step: torch.randn(8, 4)


@dataclass
class Answer:
    logits: Any
    hidden: Any = None
    names: tuple[str, ...] = ("a",)


@dataclass
class Whole:
    text: Answer
    pictures: Answer


class AnswersWithDataClasses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text, self.pictures = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return Whole(Answer(self.text(x)), Answer(self.pictures(x)))


def data_class_outputs():
    return AnswersWithDataClasses(), lambda step: torch.randn(8, 4)


class WithAverage(nn.Module):
    """A student, and a teacher that follows it as its moving average in each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    @torch.no_grad()
    def follow(self) -> None:
        for mine, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.lerp_(theirs, 0.01)

    def forward(self, x: Any) -> Any:
        self.follow()
        with torch.no_grad():
            wanted = self.teacher(x)
        return (self.student(x) - wanted).square().mean()


def with_average():
    return WithAverage(), lambda step: torch.randn(16, 4)


class FrozenBackbone(nn.Module):
    """A frozen backbone in eval() with two samples per batch: its BatchNorm does not normalize with them."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.backbone.requires_grad_(False)
        self.head = nn.Linear(8, 2)

    def train(self, mode: bool = True) -> "FrozenBackbone":
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Any) -> Any:
        return self.head(self.backbone(x).mean((2, 3)))


def frozen_backbone():
    return FrozenBackbone(), lambda step: torch.randn(2, 3, 6, 6)


class RoundedWeights(nn.Linear):
    """A stub of quantisation-aware training: rounded forward, straight through backward."""

    largest: torch.Tensor

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: Any) -> Any:
        self.largest.copy_(torch.maximum(self.largest * 0.9, x.detach().abs().max()))
        scale = self.weight.detach().abs().max() / 127
        rounded = self.weight + ((self.weight / scale).round() * scale - self.weight).detach()
        return nn.functional.linear(x, rounded, self.bias)


def rounded_weights():
    return nn.Sequential(RoundedWeights(4), nn.ReLU(inplace=True), RoundedWeights(4)), lambda s: torch.randn(8, 4)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts = (nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.1)) for _ in range(3))
        self.blocks = nn.ModuleList(parts)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def checkpointed():
    return Checkpointed(), lambda step: torch.randn(8, 4)


class Dropping(nn.Module):
    """Stochastic depth by numpy's and Python's generators, but a share of each block is always in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Any) -> Any:
        import random

        import numpy as np

        for block in self.blocks:
            keep = float(np.random.rand() < 0.5) * float(random.random() < 0.9)
            x = x + keep * np.random.randn() * block(x).tanh()
        return x


def dropping_by_numpy():
    return Dropping(), lambda step: torch.randn(8, 4)


class Encoding(UserDict):  # type: ignore[type-arg]  # as BatchEncoding of transformers
    def to(self, device: Any) -> "Encoding":
        return Encoding({name: value.to(device) for name, value in self.items()})


def encoded():
    def make_batch(step: int) -> Any:
        ids = torch.randint(0, 32, (4, 6))
        return Encoding({"ids": ids, "labels": ids.roll(1, 1)})

    return Transformer(), make_batch


class Graph:
    """An object with tensors, lists and a .to(), like torch_geometric's Data."""

    def __init__(self, x: Any, edges: Any) -> None:
        self.x, self.edges = x, edges

    def to(self, device: Any) -> "Graph":
        return Graph(self.x.to(device), self.edges.to(device))


class OfGraphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, graph: Graph, weight: float = 1.0) -> Any:
        return weight * torch.zeros_like(graph.x).index_add(0, graph.edges[1], self.layer(graph.x)[graph.edges[0]])


def of_graphs():
    return OfGraphs(), lambda step: Graph(torch.randn(6, 4), torch.randint(0, 6, (2, 9)))


def of_graphs_and_more():
    return OfGraphs(), lambda step: (Graph(torch.randn(6, 4), torch.randint(0, 6, (2, 9))), 2.0)


class OfLengths(nn.Module):
    """Sequences that are filled up, whose lengths are plain numbers and other ones on each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Any, lengths: list[int]) -> Any:
        return torch.stack([self.layer(one[:length]).square().mean() for one, length in zip(x, lengths, strict=True)])


def of_lengths():
    return OfLengths(), lambda step: (torch.randn(3, 9, 4), torch.randint(1, 9, (3,)).tolist())
