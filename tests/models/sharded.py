"""Models in fully_shard, as jobs have them: each with what might be taken for a fault."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A layer of a net, which may be computed again in the backward."""

    def __init__(self, width: int, again: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.again = again

    def forward(self, given: Any) -> Any:
        if self.again:
            return checkpoint(self._made, given, use_reentrant=False)
        return self._made(given)

    def _made(self, given: Any) -> Any:
        return given + self.down(torch.relu(self.up(self.norm(given))))


class Net(nn.Module):
    def __init__(self, width: int = 16, layers: int = 3, tied: bool = False, again: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.layers = nn.ModuleList(Block(width, again) for _ in range(layers))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, 32, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Any) -> Any:
        given = self.drop(self.embedding(ids))
        for layer in self.layers:
            given = layer(given)
        return self.head(given)


def words(step: int) -> Any:
    ids = torch.randint(0, 32, (4, 6))
    return ids, ids.roll(1, 1)


def loss(output: Any, batch: Any) -> Any:
    return cross_entropy(output.float().flatten(0, 1), batch[1].flatten())


def in_units(model: Any, **options: Any) -> Any:
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def returned(model: Any, **parts: Any) -> dict[str, Any]:
    return {"model": model, "make_batch": words, "loss": loss, **parts}


def plain():
    return returned(in_units(Net()))


def plain_in_sgd():
    return returned(in_units(Net()), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))


def hybrid():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return returned(in_units(Net(), mesh=mesh), mesh=mesh)


def in_bfloat16():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return returned(in_units(Net(again=True), mp_policy=policy))


def reduced_in_bfloat16():
    model, policy = Net(tied=True), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy)
    return returned(fully_shard(model, mp_policy=replace(policy, output_dtype=torch.float32)))


def clipped_step(model: Any, optimizer: Any, batch: Any) -> Any:
    made = loss(model(batch[0]), batch)
    made.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    return made


def clipped():
    return returned(
        in_units(Net()), step=clipped_step, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    )


def accumulating_step(model: Any, optimizer: Any, batch: Any) -> Any:
    total = 0.0
    for place in range(2):
        part = tuple(tensor[2 * place : 2 * place + 2] for tensor in batch)
        model.set_requires_gradient_sync(place == 1)
        made = loss(model(part[0]), part) / 2
        made.backward()
        total += float(made.detach())
    optimizer.step()
    optimizer.zero_grad()
    return total


def accumulating():
    return returned(in_units(Net()), step=accumulating_step)


def evaluating():
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        clipped_step(model, optimizer, batch)
        with torch.no_grad():
            return loss(model(batch[0]), batch)

    return returned(in_units(Net()), step=step)


def with_a_line_for_a_rank():
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        if dist.get_rank() == 1:
            output = model(batch[0])
            made = loss(output, batch)
        else:
            made = loss(model(batch[0]), batch)
        made.backward()
        optimizer.step()
        optimizer.zero_grad()
        return made

    return returned(in_units(Net()), step=step)


def not_resharded():
    return returned(in_units(Net(), reshard_after_forward=False))


def tied():
    return returned(in_units(Net(tied=True)))


def frozen():
    model = Net()
    model.embedding.requires_grad_(False)
    for layer in model.layers:
        layer.down.requires_grad_(False)
    return returned(in_units(model))


def uneven():
    return returned(in_units(Net(width=5)))


def offloaded():
    return returned(in_units(Net(), offload_policy=CPUOffloadPolicy(pin_memory=False)))


def compiled():
    return returned(torch.compile(in_units(Net()), backend="eager"))


def with_unused_layer():
    model = Net()
    model.spare = nn.Linear(4, 4)
    return returned(in_units(model))


class Experts(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, given: Any) -> Any:
        expert: Any = self.experts[dist.get_rank() % 2]
        return super().forward(given) + expert(given)


def with_experts():
    model: Any = Net()
    model.layers[1] = Experts(16)
    in_units(model)
    for module in model.modules():
        if hasattr(module, "set_reduce_scatter_unused_params"):
            module.set_reduce_scatter_unused_params(True)
    return returned(model)


def summed_step(model: Any, optimizer: Any, batch: Any) -> Any:
    """Gradients are summed, and the loss is divided by the words of all ranks."""
    made = loss(model(batch[0]), batch) / dist.get_world_size()
    made.backward()
    optimizer.step()
    optimizer.zero_grad()
    return made


def summed():
    model = in_units(Net())
    for module in model.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return returned(model, step=summed_step)


def with_groups():
    def optimizer(parameters: Any) -> Any:
        decayed: list[Any] = [parameter for parameter in parameters if parameter.dim() > 1]
        others: list[Any] = [parameter for parameter in parameters if parameter.dim() < 2]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1e-2)

    return returned(in_units(Net()), optimizer=optimizer)


class ConvNet(nn.Module):
    """A network with BatchNorm: the bias before it gets a gradient of rounding errors only."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(3)
        )
        self.head = nn.Linear(3, 10)

    def forward(self, images: Any) -> Any:
        for layer in self.layers:
            images = layer(images)
        return self.head(images.mean((2, 3)))


def images():
    return in_units(ConvNet()), lambda step: torch.randn(16, 3, 6, 6)
