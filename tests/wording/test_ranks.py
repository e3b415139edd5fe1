"""Ranks in words and as culprits."""

import pytest

from ddp_doctor.model.base import Json
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.recording import Node, Recording, World
from ddp_doctor.wording.ranks import pair_culprit, rank_at, rank_culprit, rank_culprits, ranks_at
from tests.readings import collected
from tests.simulated import group_fact


def _on(counts: list[int], backend: str = "gloo") -> Recording:
    nodes = tuple(Node(node_rank=at, hostname=f"n{at}", nproc=count) for at, count in enumerate(counts))
    world = World(nnodes=len(counts), nproc_per_node=counts[0], world_size=sum(counts), nodes=nodes)
    return Recording(world=world.model_copy(update={"backend": backend}))


@pytest.mark.parametrize(
    ("counts", "ranks", "words"),
    [
        ([4], [3], "rank 3"),
        ([4], [1, 3], "rank 1 and rank 3"),
        ([16], [0, 1, 3, 5, 6, 7], "ranks 0, 1, 3, 5-7"),
        ([4], [0, 1, 2, 3], "every rank"),
        ([1], [0], "rank 0"),
        ([2, 2], [0, 1, 2, 3], "every rank"),
        ([2, 2, 2], [2, 5], "rank 2 (n1) and rank 5 (n2)"),
        ([1, 1, 1], [1, 2], "rank 1 (n1) and rank 2 (n2)"),
        ([8, 8, 8], range(8, 16), "all 8 ranks of n1"),
        ([2, 3, 4], [2, 3, 4, 5, 6, 7, 8], "all 7 ranks of n1 and n2"),
        ([8, 8, 8], range(6, 14), "ranks 6-13 (n0 and n1)"),
        ([2] * 64, range(2, 128), "all 126 ranks of n1, n2, n3, n4 and 59 more"),
        ([2] * 64, range(0, 128, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 56 more (n0, n1, n2, n3 and 60 more)"),
    ],
)
def test_ranks_are_written_in_readable_form(counts, ranks, words):
    assert ranks_at(_on(counts), ranks) == words


def test_ranks_without_a_world_are_only_numbers():
    assert ranks_at(Recording(), [2, 0]) == "rank 0 and rank 2"


def test_rank_is_placed_on_nodes_with_different_numbers_of_ranks():
    recording = _on([1, 4, 2], backend="nccl")

    assert [rank_at(recording, rank) for rank in (0, 3, 5)] == [
        "rank 0 (n0, CUDA device 0)",
        "rank 3 (n1, CUDA device 2)",
        "rank 5 (n2, CUDA device 0)",
    ]


class _Seen(Fact):
    KIND = "seen/1"


def test_culprit_is_on_the_node_that_read_it_or_that_its_rank_belongs_to():
    reading = collected("seen", _Seen(), 1, rank=0)
    world = World(nnodes=2, nproc_per_node=2, world_size=4, nodes=(Node(node_rank=1, hostname="gpu7"),))
    whole = Recording(world=world, readings=(reading,))
    culprits = rank_culprits(whole, _Seen, [0, 3, 1])
    assert [(one.rank, one.node, one.node_rank) for one in culprits] == [
        (0, "gpu7", 1),
        (3, "gpu7", 1),
        (1, "node rank 0", 0),
    ]


def test_without_a_world_a_culprit_has_no_host():
    culprit = rank_culprits(Recording(), _Seen, [2])[0]
    assert (culprit.rank, culprit.node, culprit.node_rank) == (2, None, None)


def _of(check: str, rank: int | None = None, node: int = 0, **fact: Json) -> Reading:
    return Reading(check=check, status=Status.COLLECTED, node=node, rank=rank, fact=fact)


def _job(*readings: Reading, backend: str = "nccl") -> Recording:
    """Two nodes of two ranks, started with CUDA_VISIBLE_DEVICES=4,5."""
    nodes = (Node(node_rank=0, hostname="a"), Node(node_rank=1, hostname="b"))
    world = World(nnodes=2, nproc_per_node=2, world_size=4, backend=backend, nodes=nodes)
    return Recording(world=world, readings=readings)


_GPUS = [
    _of("gpus", node=node, kind="gpus/1", gpus=[{"index": at, "uuid": f"GPU-{node}-{at}"} for at in range(6)])
    for node in (0, 1)
]
_GROUP = [_of("process_group", rank, rank // 2, **group_fact(f"GPU-{rank // 2}-{4 + rank % 2}")) for rank in range(4)]


def test_a_rank_has_the_gpu_that_nvml_knows_by_its_uuid_and_not_its_cuda_device():
    job = _job(*_GPUS, *_GROUP)
    assert rank_culprit(job, 3).gpu == 5
    assert pair_culprit(job, 2, 3).gpu == 4
    assert rank_at(job, 3) == "rank 3 (b, GPU5)"


@pytest.mark.parametrize(
    "readings",
    [
        pytest.param([], id="nothing read"),
        pytest.param(_GPUS, id="the rank told no UUID"),
        pytest.param(_GROUP, id="NVML did not answer"),
        pytest.param([*_GPUS[:1], *_GROUP], id="NVML did not answer on that node"),
        pytest.param([*_GPUS, _of("process_group", 3, 1, **group_fact(None))], id="old torch"),
    ],
)
def test_rank_with_an_unknown_gpu_has_a_cuda_device_and_no_gpu(readings):
    job = _job(*readings)
    assert rank_culprit(job, 3).gpu is None
    assert rank_at(job, 3) == "rank 3 (b, CUDA device 1)"


def test_a_rank_on_the_cpu_has_no_gpu():
    assert rank_at(_job(backend="gloo"), 3) == "rank 3 (b)"
