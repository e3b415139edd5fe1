"""Factories whose models cannot be estimated, or only partially."""

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
    return nn.Linear(100_000, 1_000_000, bias=False), lambda step: torch.randn(1, 100_000)


def downloads():
    urllib.request.urlopen("https://example.org/weights.pt")


def needs_values():
    """Its depths are values of a tensor, as with stochastic depth."""
    rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Dropout(rate)) for rate in rates)), _batch


def _batch(step: int) -> torch.Tensor:
    return torch.randn(4, 64)


@torch.library.custom_op("unfit::of_a_gpu", mutates_args=())
def of_a_gpu(x: torch.Tensor) -> torch.Tensor:
    """A kernel without a declared result."""
    return x.clone()


class _OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)


class _OfAGpu(_OneLayer):
    def forward(self, x):
        return of_a_gpu(self.layer(x))


def kernel():
    """A model with an operation that cannot be traced."""
    return _OfAGpu(), _batch


def wrong_shape():
    return nn.Linear(32, 32), _batch


def converted():
    """Tied weights, brought to another type by the factory itself."""
    one, two = nn.Linear(64, 64), nn.Linear(64, 64)
    two.weight = one.weight
    return nn.Sequential(one, two).to(torch.bfloat16), lambda step: _batch(step).to(torch.bfloat16)


def alone():
    return nn.Linear(64, 64)


def grows():
    """Layers of one class and size; each makes its image four times as large."""
    return nn.Sequential(*(nn.ConvTranspose2d(16, 16, 2, stride=2) for _ in range(7))), lambda step: torch.randn(
        1, 16, 4, 4
    )


def frozen():
    return nn.Linear(64, 64).requires_grad_(False), _batch


def complex_numbers():
    """Parameters of 16 bytes each."""
    return nn.Linear(64, 64, dtype=torch.complex128), lambda step: _batch(step).to(torch.complex128)


class _Counts(_OneLayer):
    def forward(self, count):
        return self.layer(torch.ones(count, 64))


def of_a_number():
    return _Counts(), lambda step: 5


def no_optimizer():
    return {"model": nn.Linear(64, 64), "make_batch": _batch, "optimizer": lambda parameters: 7}


class _Numpy(_OneLayer):
    def forward(self, x):
        return self.layer(x + torch.from_numpy(x.numpy()))


def leaves_torch():
    return _Numpy(), _batch


class _NoGradient(_OneLayer):
    @torch.no_grad()
    def forward(self, x):
        return self.layer(x)


def no_gradient():
    return _NoGradient(), _batch


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(2))

    def forward(self, x):
        for layer in (*self.layers, *self.layers):
            x = layer(x)
        return x


def twice():
    return _Twice(), lambda step: torch.randn(1, 512)


def lazy():
    """A layer that knows its size after its first batch."""
    return nn.LazyLinear(64), _batch


def sharded():
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import distribute_module

    return distribute_module(nn.Linear(64, 64), DeviceMesh("cpu", [0, 1])), _batch


def no_samples():
    return nn.Linear(64, 64), lambda step: torch.randn(0, 64)
