"""Models that work with DDP but have a property that looks like a fault."""

import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


class ConvNet(nn.Module):
    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), norm(8), nn.ReLU())
        self.extra = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, images: Any) -> Any:
        features = self.body(images).mean((2, 3))
        return self.head(self.extra(features) if self.takes_extra(images) else features)

    def takes_extra(self, images: Any) -> bool:
        return True


def images(step: int, samples: int = 16) -> Any:
    return torch.randn(samples, 3, 6, 6)


def conv_net():
    return ConvNet(), images


def conv_net_alone():
    return ConvNet()


class Transformer(nn.Module):
    """A small one, with dropout, whose embedding is its head too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Any, labels: Any) -> Any:
        given = self.head(self.encoder(self.embedding(ids)))
        return {"loss": nn.functional.cross_entropy(given.flatten(0, 1), labels.flatten()), "logits": given}


def transformer():
    def make_batch(step: int):
        ids = torch.randint(0, 32, (4, 6))
        return {"ids": ids, "labels": ids.roll(1, 1)}

    return Transformer(), make_batch


class SharedBranch(ConvNet):
    """A branch that all ranks take together, because it depends on the step in the batch."""

    def takes_extra(self, images: Any) -> bool:
        return bool(images.shape[0] > 1)


def shared_branch():
    return SharedBranch(), images


class OddOnes(nn.Module):
    """Frozen and complex parameters, a sparse embedding, a buffer that is replaced in the forward."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 4, sparse=True)
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.phases = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, ids: Any) -> Any:
        self.steps = self.steps + 1
        return (self.frozen(self.table(ids)) * self.phases).abs().sum(-1)


def odd_ones():
    return OddOnes(), lambda step: (torch.randint(0, 12, (5,)),)


class UnlikeAtFirst(nn.Module):
    """Each rank begins with its own weights, which DDP equalizes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        nn.init.constant_(self.layer.weight, 1.0 + dist.get_rank())

    def forward(self, given: Any) -> Any:
        return self.layer(given).tanh()


def unlike_at_first():
    return UnlikeAtFirst(), lambda step: torch.randn(3, 4)


def uneven_batches():
    return UnlikeAtFirst(), lambda step: torch.randn(3 + dist.get_rank(), 4)


def wide_net():
    """64 KiB of gradients, packed by a DDP with non-default options."""
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    return net, lambda step: torch.ones(32, 64), {"gradient_as_bucket_view": True}


def with_buckets_of_its_own():
    return nn.Linear(64, 64), lambda step: torch.ones(32, 64), {"bucket_cap_mb": 1}


def made_slowly():
    end_s = time.thread_time() + 2.6
    while time.thread_time() < end_s:
        torch.ones(64, 64) @ torch.ones(64, 64)
    return ConvNet(), images


def deep_net():
    """4 MiB of gradients, and computing that takes about as long as a slow link needs for them."""
    net = nn.Sequential(*(part for _ in range(16) for part in (nn.Linear(256, 256), nn.ReLU())))
    return net, lambda step: torch.randn(3072, 256)


def many_layers():
    """Ninety-six small gradients: in a bucket each, they wait for as many all-reduces."""
    net = nn.Sequential(*(part for _ in range(48) for part in (nn.Linear(32, 32), nn.ReLU())))
    return net, lambda step: torch.randn(8, 32)


class Experts(nn.Module):
    """Each sample goes to one of four experts; some get no samples on some ranks, and this changes between batches."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        share, chosen = self.gate(x).softmax(-1).max(-1)
        parts = [
            share[chosen == number, None] * expert(x[chosen == number])
            for number, expert in enumerate(self.experts)
            if bool((chosen == number).any())
        ]
        return self.head(torch.cat(parts))


def experts() -> Any:
    return Experts(), lambda step: torch.randn(3, 8), {"find_unused_parameters": True}


def synchronised_batch_norm():
    convert: Any = nn.SyncBatchNorm.convert_sync_batchnorm
    return convert(ConvNet()), images


def static_graph():
    return UnlikeAtFirst(), lambda step: torch.randn(3, 4), {"static_graph": True}


class SlowAtFirst(ConvNet):
    """A model with a slow first forward, as after torch.compile."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = False

    def forward(self, images: Any) -> Any:
        if not self.ready:
            threading.Event().wait(3.0)
        self.ready = True
        return super().forward(images)


def slow_at_first():
    return SlowAtFirst(), images


def classes(step: int) -> Any:
    return torch.randint(0, 10, (16,))


def of_pair(output: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(output, batch[1])


def target_for_the_loss():
    return {
        "model": ConvNet(),
        "make_batch": lambda step: [images(step), classes(step)],  # a list, as a DataLoader collates
        "loss": of_pair,
        "ddp": {"gradient_as_bucket_view": True},
    }


def labels_for_the_loss():
    def make_batch(step: int) -> Any:
        return {"images": images(step), "labels": classes(step), "paths": ["a.png"] * 16}

    def loss(output: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(output, batch["labels"])

    return {"model": ConvNet(), "make_batch": make_batch, "loss": loss}


def inputs_by_name_and_target():
    return {"model": ConvNet(), "make_batch": lambda step: ({"images": images(step)}, classes(step)), "loss": of_pair}


class OfTwo(ConvNet):
    def forward(  # type: ignore[override]  # a model has arguments of its own
        self, images: Any, scale: Any, mask: Any = None, labels: Any = None
    ) -> Any:
        output = super().forward(images * scale)
        output = output if mask is None else output[mask]
        return output if labels is None else nn.functional.cross_entropy(output, labels)


def several_inputs_and_target():
    def loss(output: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(output, batch[-1])

    return {"model": OfTwo(), "make_batch": lambda step: (images(step), torch.ones(1), classes(step)), "loss": loss}


def boolean_mask():
    return OfTwo(), lambda step: (images(step), torch.ones(1), torch.arange(16) % 2 == 0)


class WithLabels(ConvNet):
    def forward(self, images: Any, labels: Any = None) -> Any:
        output = super().forward(images)
        return output if labels is None else nn.functional.cross_entropy(output, labels)


def optional_labels():
    return WithLabels(), lambda step: (images(step), classes(step))


class by_attributes:  # noqa: N801 - a class that is the factory
    loss = staticmethod(of_pair)

    def __init__(self) -> None:
        self.model = ConvNet()

    def make_batch(self, step: int) -> Any:
        return images(step), classes(step)
