"""Recordings of many nodes, made from readings of one node, because 4,096 nodes are not available for tests.

Each reading is a real one, or one of tests/recordings, with replaced node, rank and GPU UUID.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ddp_doctor.facts.collectives import ProcessGroupFact
from ddp_doctor.model.base import Json
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Node, Options, Recording, World
from ddp_doctor.model.trial import RankEvidence, Step, TrialRecord
from tests.recordings import raw

GPUS = 8
#: Changes the fact of one check on one node and, for rank checks, one rank; None leaves it unchanged.
Change = Callable[[str, int, int | None, dict[str, Any]], None]

_NODE_CHECKS = {
    "env_vars": "env_vars/ordinary-settings",
    "software": "software/gpu-nodes-in-order",
    "host": "host/gpu-nodes-in-order",
    "gpus": "gpus/eight-healthy",
    "topology": "topology/healthy-two-socket-eight-gpus",
}
_RANK_CHECKS = {
    "process_group": "process_group/two-gpu-ranks-healthy",
    "gpu_speed": "gpu_speed/eight-h100-at-their-power-limit",
    "allreduce": "allreduce/not-repeatable",
    "gradient_sync": "gradient_sync/averaged",
    "buffers": "buffers/broadcast",
}
_TRANSPORT = "node0:1:1 [0] NCCL INFO Channel {channel:02}/0 : {rank}[{gpu}] -> {next}[{next_gpu}] via P2P/CUMEM\n"


@cache
def _fact(recording: str, check: str) -> dict[str, Any]:
    """Return the first fact of a check in a recording, except for the import of torch."""
    text = raw(recording)
    facts = [one["fact"] for one in text["readings"] if one["check"] == check and one.get("fact")]
    fact: dict[str, Any] = next(one for one in facts if one["kind"] != "torch-import/1")
    return fact


def _no_change(_check: str, _node: int, _rank: int | None, _fact: dict[str, Any]) -> None:
    pass


def world(nodes: int, backend: str = "nccl", gpus: int = GPUS) -> World:
    return World(
        nnodes=nodes,
        nproc_per_node=gpus,
        world_size=nodes * gpus,
        backend=backend,
        nodes=tuple(
            Node(node_rank=at, hostname=f"node{at}", addresses={"eth0": (f"10.{at >> 8}.{at & 255}.1",)})
            for at in range(nodes)
        ),
    )


def recording(nodes: int, change: Change = _no_change, steps: int = 4) -> Recording:
    """A healthy run of ``nodes`` nodes of eight GPUs over NCCL, but for what ``change`` does to a fact."""
    size = nodes * GPUS
    ranks = [_reading(check, at // GPUS, at, change, size) for check in _RANK_CHECKS for at in range(size)]
    return Recording(
        tool_version="0.1.0",
        run_id="simulated",
        started_at="2026-01-15T10:00:00Z",
        duration_s=12.0,
        world=world(nodes),
        options=Options(),
        readings=(*(_reading(check, at, None, change, size) for check in _NODE_CHECKS for at in range(nodes)), *ranks),
        trials=(trial(nodes, steps),),
    )


def _reading(check: str, node: int, rank: int | None, change: Change, world_size: int) -> Reading:
    fact = json.loads(_text(check))
    _put_in(fact, check, node, rank, world_size)
    change(check, node, rank, fact)
    return Reading(check=check, status=Status.COLLECTED, node=node, rank=rank, fact=fact, duration_s=0.1)


@cache
def _text(check: str) -> str:
    return json.dumps(_fact((_NODE_CHECKS | _RANK_CHECKS)[check], check))


def _uuid(node: int, gpu: int) -> str:
    return f"GPU-{node:08x}-d72c-4106-c12f-20bd9faed9f{gpu}"


def _put_in(fact: dict[str, Any], check: str, node: int, rank: int | None, world_size: int) -> None:
    """Set the values that depend on this world, node and rank."""
    fact |= {name: world_size for name in ("world_size", "ranks") if name in fact}
    if check == "gpus":
        for gpu in fact["gpus"]:
            gpu["uuid"] = _uuid(node, gpu["index"])
    elif check in ("process_group", "gpu_speed"):
        local = (rank or 0) % GPUS
        fact |= {"gpu_uuid": _uuid(node, local), "device": f"cuda:{local}"}
        if "group_rank" in fact:
            fact["group_rank"] = rank
    elif check == "env_vars":
        fact["variables"] = {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "=mlx5_0,mlx5_1"}


def trial(nodes: int, steps: int, **fields: Any) -> TrialRecord:
    """Return one trial of all ranks that entered and left the same ``steps`` steps."""
    ranks = tuple(range(nodes * GPUS))
    given: Mapping[str, Any] = {
        "trial": "0",
        "backend": "nccl",
        "ranks": ranks,
        "checks": tuple(_RANK_CHECKS),
        "evidence": tuple(_evidence(rank, len(ranks), steps) for rank in ranks),
        "duration_s": 9.0,
    }
    return TrialRecord(**{**given, **fields})


def _evidence(rank: int, world_size: int, steps: int) -> RankEvidence:
    local, following = rank % GPUS, (rank + 1) % world_size
    ends = {"rank": rank, "gpu": local, "next": following, "next_gpu": following % GPUS}
    return RankEvidence(
        rank=rank,
        node=rank // GPUS,
        pid=4000 + local,
        began=True,
        done=True,
        check="buffers",
        steps=tuple(step(at) for at in range(steps)),
        exit_code=0,
        output_tail="".join(_TRANSPORT.format(channel=channel, **ends) for channel in range(4)),
    )


def step(seq: int, **fields: Any) -> Step:
    at = 1.0 + seq / 100
    given: Mapping[str, Any] = {
        "check": "allreduce",
        "name": "all_reduce",
        "seq": seq,
        "detail": "float32 [4096] sum",
        "entered_at": at,
        "left_at": at + 0.001,
        "where": "/opt/venv/checks/collectives/allreduce.py:72",
    }
    return Step(**{**given, **fields})


def group_fact(gpu_uuid: str | None) -> dict[str, Json]:
    """Return the fact of a rank in an NCCL group on this GPU."""
    return ProcessGroupFact(
        backend="nccl",
        group_rank=0,
        world_size=1,
        init_s=0.5,
        first_collective_s=0.5,
        device="cuda:0",
        gpu_uuid=gpu_uuid,
        torch_version="2.13.0",
        nccl_available=True,
        gloo_available=True,
        pid=4711,
    ).recorded()
