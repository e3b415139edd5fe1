"""Models as users write them, whose factory makes the mesh of the job."""

import os
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def _with(mesh: DeviceMesh) -> dict[str, Any]:
    return {"model": torch.nn.Linear(2, 2), "make_batch": lambda step: torch.ones(3, 2) * step, "mesh": mesh}


def two_by_two() -> dict[str, Any]:
    return _with(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "shard")))


def without_names() -> dict[str, Any]:
    return _with(init_device_mesh("cpu", (2, 2)))


def in_an_order_of_its_own() -> dict[str, Any]:
    return _with(DeviceMesh("cpu", [[0, 3], [2, 1]], mesh_dim_names=("tp", "dp")))


def in_another_order_on_rank_1() -> dict[str, Any]:
    shape, names = ((4, 1), ("dp", "shard")) if os.environ["RANK"] == "1" else ((2, 2), ("dp", "shard"))
    return _with(init_device_mesh("cpu", shape, mesh_dim_names=names))


def of_half_of_the_ranks() -> dict[str, Any]:
    return _with(init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "shard"))["shard"])


def on_all_but_rank_1() -> dict[str, Any]:
    return {"model": torch.nn.Linear(2, 2)} if os.environ["RANK"] == "1" else two_by_two()


def fails_before_it_on_rank_1() -> dict[str, Any]:
    if os.environ["RANK"] == "1":
        raise ValueError("no shard for this rank")
    return two_by_two()


def no_mesh_at_all() -> dict[str, Any]:
    return {"model": torch.nn.Linear(2, 2), "mesh": (2, 2)}
