"""What the rules of process_group say of several nodes; its probe is run by tests/launch."""

from functools import partial
from typing import Any

from ddp_doctor.checks.collectives.process_group import CHECK
from ddp_doctor.facts.collectives import ProcessGroupFact, TorchImport
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.recording import Recording
from tests.readings import findings_of, plain_world

BROKEN = "Traceback (most recent call last):\nImportError: libcudart.so.13: cannot open shared object file"


def _recording(nodes: int, nproc: int, *readings: Reading) -> Recording:
    return Recording(world=plain_world(nodes, nproc, "nccl"), readings=readings)


_findings = partial(findings_of, CHECK)


def _read(fact: Fact, node: int, rank: int | None = None, check: str = "process_group") -> Reading:
    status = Status.FAILED if isinstance(fact, TorchImport) and fact.error else Status.COLLECTED
    return Reading(check=check, status=status, node=node, rank=rank, fact=fact.recorded())


def _group(rank: int, gpu: str, **fields: Any) -> ProcessGroupFact:
    given: dict[str, Any] = {
        "backend": "nccl",
        "group_rank": rank,
        "world_size": 6,
        "init_s": 0.1,
        "first_collective_s": 1.0,
        "device": "cuda:0",
        "gpu_uuid": gpu,
        "gpu_name": "NVIDIA H100",
        "torch_version": "2.9.1",
        "nccl_available": True,
        "gloo_available": True,
        "pid": 100 + rank,
    }
    return ProcessGroupFact(**given | fields)


def test_an_import_that_fails_on_two_of_three_nodes_is_one_finding_that_names_both():
    broken = [
        _read(TorchImport(import_s=0.2, error=BROKEN), node, check=check)
        for node in (1, 2)
        for check in ("process_group", "allreduce")
    ]

    (found,) = _findings(_recording(3, 1, _read(TorchImport(import_s=1.4), 0), *broken))

    assert found.title == (
        "torch cannot be imported on node1 and node2: ImportError: libcudart.so.13: cannot open shared object file"
    )
    assert [one.node for one in found.culprits] == ["node1", "node2"]
    assert [one.check for one in found.evidence] == ["process_group", "allreduce"]


def test_nodes_whose_imports_fail_differently_are_two_findings():
    hangs = TorchImport(import_s=60.0, stuck_at='File "/nfs/torch/__init__.py", line 3 in <module>')
    broken = TorchImport(import_s=0.2, error=BROKEN)

    found = _findings(_recording(2, 1, _read(broken, 0), _read(hangs, 1)))

    assert [[one.node for one in finding.culprits] for finding in found] == [["node0"], ["node1"]]
    assert found[1].title.startswith("torch is not imported after 60 s on node1: File ")


def test_an_import_that_still_computes_blames_no_node():
    slow = TorchImport(import_s=90.0, stuck_at='File "/nfs/torch/__init__.py", line 3 in <module>', moving=True)

    assert _findings(_recording(1, 1, _read(slow, 0))) == []


def test_a_script_that_puts_all_ranks_on_gpu_0_of_every_node_is_one_finding():
    ranks = [_read(_group(rank, f"GPU-{rank // 8}"), rank // 8, rank) for rank in range(8 * 64)]

    (found,) = _findings(_recording(64, 8, *ranks))

    assert found.title.startswith("Ranks 0-7 run on one GPU of node0 (NVIDIA H100, GPU-0); ranks 8-15 run on ")
    assert found.title.endswith("; and so on, on 60 GPUs more")
    assert len(found.culprits) == 512
    assert len(found.evidence) == 16


def test_equal_uuids_on_two_nodes_are_two_gpus():
    alike = [_read(_group(rank, "GPU-0"), rank, rank) for rank in range(2)]

    assert _findings(_recording(2, 1, *alike)) == []
