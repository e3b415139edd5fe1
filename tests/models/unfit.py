"""Factories whose models cannot be estimated, or only in part."""

import urllib.request

import numpy as np
import torch
from torch import nn


def huge_in_numpy():
    """Weights of 100 GB that are made by another library than torch."""
    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(torch.from_numpy(np.ones((100_000, 250_000), dtype=np.float32)))
    return layer


def huge():
    """Weights of 400 GB."""
    return nn.Linear(100_000, 1_000_000, bias=False), lambda step: torch.randn(1, 100_000)


def downloads():
    """Weights from elsewhere."""
    urllib.request.urlopen("https://example.org/weights.pt")


def needs_values():
    """Its depths are values of a tensor, as those of stochastic depth are."""
    rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Dropout(rate)) for rate in rates)), _batch


def _batch(step: int) -> torch.Tensor:
    return torch.randn(4, 64)


@torch.library.custom_op("unfit::of_a_gpu", mutates_args=())
def of_a_gpu(x: torch.Tensor) -> torch.Tensor:
    """A kernel that does not say what it returns."""
    return x.clone()


class _OfAGpu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return of_a_gpu(self.layer(x))


def kernel():
    """A model with an operation that cannot be traced."""
    return _OfAGpu(), _batch


def wrong_shape():
    """A fault of the user's own."""
    return nn.Linear(32, 32), _batch


def converted():
    """Tied weights, brought to another type by the factory itself."""
    one, two = nn.Linear(64, 64), nn.Linear(64, 64)
    two.weight = one.weight
    return nn.Sequential(one, two).to(torch.bfloat16), lambda step: _batch(step).to(torch.bfloat16)


def alone():
    """Without a batch."""
    return nn.Linear(64, 64)
