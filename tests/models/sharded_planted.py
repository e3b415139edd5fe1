"""Models in fully_shard with one defect each; the rank that is off is number 1."""

import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.models.planted import is_bad
from tests.models.sharded import Net, clipped_step, in_units, loss, returned


def other_units():
    model = Net()
    for layer in model.layers[1:] if is_bad() else model.layers:
        fully_shard(layer)
    return returned(fully_shard(model))


def other_precision():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if is_bad() else None)
    return returned(in_units(Net(), mp_policy=policy))


def other_dtype():
    return returned(in_units(Net().bfloat16() if is_bad() else Net()))


def other_resharding():
    return returned(in_units(Net(), reshard_after_forward=not is_bad()))


def other_mesh():
    ranks = list(range(dist.get_world_size()))
    return returned(in_units(Net(), mesh=DeviceMesh("cpu", ranks[::-1] if is_bad() else ranks)))


def bare_on_one_rank():
    return returned(Net() if is_bad() else in_units(Net()))


def root_not_wrapped():
    model = Net()
    for layer in model.layers:
        fully_shard(layer)
    return returned(model)


def replicas_of_their_own():
    torch.manual_seed(int(dist.get_rank() == 3))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return returned(in_units(Net(), mesh=mesh), mesh=mesh)


def leaves_a_part_of_the_batch_out():
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        for place in range(3 if is_bad() else 4):
            part = tuple(tensor[place : place + 1] for tensor in batch)
            loss(model(part[0]), part).backward()
        optimizer.step()
        optimizer.zero_grad()

    return returned(in_units(Net()), step=step)


def never_enters_the_step():
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        return None if is_bad() else clipped_step(model, optimizer, batch)

    return returned(in_units(Net()), step=step)


def never_steps():
    def step(model: Any, _optimizer: Any, batch: Any) -> Any:
        return loss(model(batch[0]), batch)

    return returned(in_units(Net()), step=step)


def ignored() -> dict[str, Any]:
    model = Net()
    in_units(model, ignored_params={model.head.weight})
    return returned(model)


def ignored_and_reduced():
    """The job averages the gradient of a parameter that fully_shard ignores."""

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        made = loss(model(batch[0]), batch)
        made.backward()
        dist.all_reduce(model.head.weight.grad)
        model.head.weight.grad /= dist.get_world_size()
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = None if parameter.grad is None else parameter.grad
        optimizer.step()
        optimizer.zero_grad()
        return made

    return {**ignored(), "step": step}


def added_afterwards():
    model = in_units(Net())
    model.head = nn.Linear(16, 32)
    return returned(model)


def optimizer_before():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    return returned(in_units(model), optimizer=lambda parameters: optimizer)


def optimizer_before_on_one_rank():
    model = Net()
    before = torch.optim.AdamW(model.parameters())
    in_units(model)
    return returned(model, optimizer=lambda parameters: before if is_bad() else torch.optim.AdamW(parameters))


def never_synchronised():
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        model.set_requires_gradient_sync(False)
        return clipped_step(model, optimizer, batch)

    return returned(in_units(Net()), step=step)


def not_reduced_between_replicas():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = in_units(Net(), mesh=mesh)
    model.set_requires_all_reduce(False)
    return returned(model, mesh=mesh)


def over_a_part():
    """Sharded over one dimension of the mesh, and never reduced over the other."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return returned(in_units(Net(), mesh=mesh["shard"]), mesh=mesh)


def stale_shard():
    """The optimizer of one rank omits the first layer."""

    def optimizer(parameters: Any) -> Any:
        own = list(parameters)
        return torch.optim.AdamW(own[1:] if is_bad() else own)

    return returned(in_units(Net()), optimizer=optimizer)


def other_rate():
    return returned(
        in_units(Net()), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01 if is_bad() else 0.1)
    )


def rank_branch():
    class Branching(Net):
        def forward(self, ids: Any) -> Any:
            given = self.embedding(ids)
            for layer in self.layers[1:] if is_bad() else self.layers:
                given = layer(given)
            return self.head(given)

    return returned(in_units(Branching()))


def lost_in_the_forward():
    class Sleeping(Net):
        def forward(self, ids: Any) -> Any:
            if is_bad():
                threading.Event().wait()
            return super().forward(ids)

    return returned(in_units(Sleeping()))


def lost_in_the_step():
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        if is_bad():
            threading.Event().wait()
        return clipped_step(model, optimizer, batch)

    return returned(in_units(Net()), step=step)


def raises_in_the_step():
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        if is_bad():
            raise ValueError("no such batch")
        return clipped_step(model, optimizer, batch)

    return returned(in_units(Net()), step=step)


def raises_in_every_step():
    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        raise ValueError("no such batch anywhere")

    return returned(in_units(Net()), step=step)


def root_before_its_layers():
    model: Any = fully_shard(Net())
    for layer in model.layers:
        fully_shard(layer)
    return returned(model)


class Keeping(Net):
    """Its state_dict lacks the head, which is trained."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        kept = super().state_dict(*args, **kwargs)
        return {name: value for name, value in kept.items() if name != "head.weight"}


def keeps_a_part():
    return returned(in_units(Keeping()))


def keeps_a_part_silently():
    class Lenient(Keeping):
        def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
            return super().load_state_dict(state_dict, strict=False, assign=assign)

    return returned(in_units(Lenient()))


class FullyShardedDataParallel(nn.Module):
    """Called as torch's, which needs a GPU."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module


def in_fsdp1():
    return returned(FullyShardedDataParallel(Net()))


def without_a_root():
    """All parameters are in sharding units, but the model itself is not one."""
    model: Any = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for layer in model:
        fully_shard(layer)
    return model, lambda step: torch.randn(4, 8)
