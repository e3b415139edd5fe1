"""torch's CUDA build on simulated GPUs with ddp-doctor, end to end.

Nothing here was seen on a GPU. ``make planted-torch`` runs these tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.knowledge.collectives import BARRIER, GROUPS, OBJECTS, TABLE
from tests.lab.hosts import ROOT
from tests.machines import planting, servers
from tests.machines.whole import Whole
from tests.nccl_wheels import libnccl
from tests.planted.real import two_a100
from tests.planted.test_nccl import skip_where_none_can_be_planted
from tests.planted.with_torch import PlantedTorch, ended

pytestmark = [pytest.mark.planted_torch, pytest.mark.timeout(1200)]

#: Findings about the machine that runs the tests, not the simulated one: its load, and its few CPUs.
NOT_JUDGED = {"DD224", "DD227", "DD409"}
#: All but what measures rates: products of matrices take the CPU longer than a check has.
QUICK = ("--level", "quick", "--skip", "gpu_speed,p2p")
STANDARD = ("--level", "standard", "--skip", "gpu_speed", "--budget", "240")
LIMIT_S = 400

TRAINS = """
import os, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(rank)
layers = (torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 1))
module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(*layers)).cuda()
model = torch.nn.parallel.DistributedDataParallel(module, device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.rand(4, 1, 4, 4, device="cuda")).square().mean().backward()
    optimizer.step()
assert (torch.arange(3, device="cuda") % 2).tolist() == [0, 1, 0]
total = torch.zeros(1, device="cuda", dtype=torch.bfloat16) + rank + 1
dist.all_reduce(total)
print("weights", sum(each.double().sum().item() for each in model.parameters()), "total", total.item(), flush=True)
dist.destroy_process_group()
"""


def hosts(
    count: int, build: Callable[[int], Whole], *plants: Callable[[list[Whole]], None]
) -> Callable[[], list[Whole]]:
    def made() -> list[Whole]:
        machines = [build(node) for node in range(count)]
        for plant in plants:
            plant([machines[0], machines[-1]])
        return machines

    return made


def a100(node: int = 0) -> Whole:
    return servers.hgx_a100_roce(node, as_root=True)


def in_slices(pair: list[Whole]) -> None:
    pair[-1].nvml = {"NVML_STAND_IN": "mig_all"}


ONE = hosts(1, a100)
HEAD = "planted-0:29400"


def of_model(name: str) -> tuple[str, ...]:
    return ("--only", "user_model", "--model", f"tests.planted.models:{name}")


def run(
    machines: Sequence[Whole],
    ranks: int,
    options: Sequence[str] = QUICK,
    of: Mapping[int, Mapping[str, str]] | None = None,
) -> tuple[int | None, dict[str, Any]]:
    """Exit code and report of ``ddp-doctor run`` with so many ranks on each machine; ``of`` is a host's environment."""
    skip_where_none_can_be_planted()
    with PlantedTorch(machines) as planted:
        started = []
        for host in planted.hosts:
            several = len(machines) > 1
            where = ("--nnodes", str(len(machines)), "--node-rank", str(host.index)) if several else ()
            meet = ("--rdzv-endpoint", HEAD) if several else ()
            report = host.folder / "report.json"
            argv = ("run", "--nproc-per-node", str(ranks), "--json", report, *where, *meet, *options)
            env = (of or {}).get(host.index, {})
            started.append(planted.start_doctor(*argv, host=host.index, env=env))
        done = [ended(process, LIMIT_S) for process in started]
        report = planted.hosts[0].folder / "report.json"
        assert report.exists(), done[0].said
        return done[0].code, json.loads(report.read_text())


@dataclass(frozen=True)
class Fault:
    """A fault: ``says`` is a pattern of the title; ``culprits`` are all kinds with a rank, a host or a name."""

    name: str
    code: str
    says: str
    culprits: tuple[tuple[str, str | int], ...]
    machines: Callable[[], list[Whole]] = ONE
    options: tuple[str, ...] = QUICK
    of: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    ranks: int = 2
    proved: bool = False  # its remedy, by a second run of the real NCCL
    exit: int = 1
    also: tuple[str, ...] = ()  # what else is said, rightly
    other: str = ""  # the release of NCCL that the second host's environment brings


def _culprits(finding: Mapping[str, Any]) -> set[tuple[str, str | int]]:
    return {
        (one["kind"], one["rank"] if one["kind"] == "rank" else one["name"] or one["node"])
        for one in finding["culprits"]
    }


def _env(*nodes: int, **settings: str) -> dict[int, Mapping[str, str]]:
    return dict.fromkeys(nodes, settings)


_TWO = hosts(2, a100)
_RANK_1 = (("rank", 1),)
FAULTS = (
    Fault(
        "a node's ranks are missing",
        "DD516",
        "node rank 1 did not check in",
        (),
        options=(*QUICK, "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", HEAD, "--join-timeout", "5"),
    ),
    Fault(
        "one GPU for two ranks",
        "DD311",
        "2 ranks, but only 1 GPU is visible",
        (("setting", "CUDA_VISIBLE_DEVICES"), ("node", "planted-0")),
        of=_env(0, CUDA_VISIBLE_DEVICES="0"),
    ),
    Fault(
        "the same GPU twice",
        "DD311",
        'CUDA_VISIBLE_DEVICES="0,0"; CUDA stops at entry "0"',
        (("setting", "CUDA_VISIBLE_DEVICES"), ("node", "planted-0")),
        of=_env(0, CUDA_VISIBLE_DEVICES="0,0"),
    ),
    Fault(
        "NCCL_IB_HCA names no adapter",
        "DD617",
        "NCCL_IB_HCA=mlx5_99: Failed to initialize any NET plugin",
        (("setting", "NCCL_IB_HCA"),),
        of=_env(0, NCCL_NET="IB", NCCL_IB_HCA="mlx5_99"),
        proved=True,
        also=("DD106",),
    ),
    Fault(
        "an adapter's port is down",
        "DD560",
        "the RDMA port is down",
        (("nic", "mlx5_0"),),
        hosts(2, a100, planting.down(0)),
        ranks=1,
        exit=0,
    ),
    Fault(
        "NCCL_SOCKET_IFNAME names no interface",
        "DD617",
        "NCCL_SOCKET_IFNAME=nosuch0: Bootstrap : no socket interface found",
        (("setting", "NCCL_SOCKET_IFNAME"),),
        of=_env(0, NCCL_SOCKET_IFNAME="nosuch0"),
        proved=True,
    ),
    Fault(
        "NCCL_SOCKET_IFNAME names no interface on one node",
        "DD521",
        "planted-1 with NCCL_SOCKET_IFNAME=nosuch0",
        (("setting", "NCCL_SOCKET_IFNAME"),),
        _TWO,
        of=_env(1, NCCL_SOCKET_IFNAME="nosuch0"),
        ranks=1,
        proved=True,
        also=("DD551",),
    ),
    Fault(
        "NCCL_NET names no network",
        "DD233",
        'provides the network of NCCL_NET="nosuch"',
        (("node", "planted-0"),),
        of=_env(0, NCCL_NET="nosuch"),
        proved=True,
        also=("DD617",),
    ),
    Fault(
        "NCCL_IB_HCA names no adapter on one node",
        "DD571",
        "NCCL_IB_HCA=mlx5_99 matches no active RDMA port on planted-1",
        (("setting", "NCCL_IB_HCA"),),
        _TWO,
        of=_env(1, NCCL_IB_HCA="mlx5_99"),
        ranks=1,
        proved=True,
        also=("DD551",),
    ),
    Fault(
        "another NCCL on one node",
        "DD550",
        r"different versions of NCCL: 2\.(27\.5|30\.7) on planted-0; 2\.32\.3 on planted-1",
        (),
        _TWO,
        ranks=1,
        also=("DD205",),
        other="2.32.3",
    ),
    Fault(
        "NCCL_NET is another on one node",
        "DD436",
        "NCCL_NET=Socket keeps NCCL from the RDMA ports of planted-1",
        (("node", "planted-1"), ("setting", "NCCL_NET")),
        _TWO,
        of=_env(1, NCCL_NET="Socket"),
        ranks=1,
        proved=True,
        also=("DD621",),
    ),
    Fault(
        "NCCL_MAX_NCHANNELS is set on one node",
        "DD551",
        "NCCL_MAX_NCHANNELS differs: unset on planted-0; set to 2 on planted-1",
        (),
        _TWO,
        of=_env(1, NCCL_MAX_NCHANNELS="2"),
        proved=True,
    ),
    Fault(
        "P2P is off on one node",
        "DD434",
        "NCCL_P2P_DISABLE=1 keeps NCCL from direct copies .P2P. between GPUs of planted-1",
        (("setting", "NCCL_P2P_DISABLE"), ("node", "planted-1")),
        _TWO,
        of=_env(1, NCCL_P2P_DISABLE="1"),
    ),
    Fault(
        "no memory can be locked",
        "DD238",
        "NCCL could not lock memory for RDMA on planted-0 and planted-1",
        (("node", "planted-0"), ("node", "planted-1")),
        _TWO,
        of=_env(0, 1, PLANTED_IB="memlock"),
        ranks=1,
    ),
    Fault(
        "the module for GPUDirect RDMA is absent",
        "DD339",
        "GPUDirect RDMA is off on planted-1",
        (("node", "planted-1"),),
        hosts(2, a100, planting.no_peermem),
        ranks=1,
        exit=0,
    ),
    Fault(
        "access control is on",
        "DD420",
        "access control .ACS. of the PCIe switches of planted-1",
        (("node", "planted-1"),),
        lambda: [servers.dgx_h100(node, as_root=True, acs=0x1D * node) for node in range(2)],
        ranks=1,
        exit=0,
        also=("DD563",),
    ),
    Fault(
        "GPUs in slices",
        "DD309",
        r"GPU 0 \(0000:1b:00.0\) on planted-0: in MIG mode",
        (("gpu", "GPU 0 (GPU-8932f930-d72c-4106-c12f-20bd9faed9f6, 0000:1b:00.0)"),),
        hosts(1, a100, in_slices),
        also=("DD311",),
    ),
    Fault(
        "a batch on another rank's GPU",
        "DD774",
        "are on device cuda:0 instead of .*, on rank 1",
        (*_RANK_1, ("file", "[0]")),
        options=of_model("on_the_first_gpu"),
    ),
    Fault(
        "a rank hangs in its backward",
        "DD610",
        r"Rank 1 .* hangs in your backward, models.py:\d+ `signal.pause\(\)`; rank 0 has waited",
        _RANK_1,
        options=of_model("hangs"),
    ),
    Fault(
        "a rank is killed",
        "DD612",
        "Rank 1 .* was killed by SIGKILL in your forward, loss or backward; rank 0 waits",
        _RANK_1,
        options=of_model("killed"),
    ),
    Fault("a rank is stopped", "DD611", "Rank 1 .* is stopped .*; rank 0 waits", _RANK_1, options=of_model("stopped")),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_reported_with_its_culprit_and_fix(fault: Fault):
    skip_where_none_can_be_planted()
    of = _env(1, LD_PRELOAD=str(libnccl(fault.other))) if fault.other else fault.of

    code, report = run(fault.machines(), fault.ranks, fault.options, of)

    found = {one["code"]: one for one in report["findings"] if one["code"] not in NOT_JUDGED}
    assert fault.code in found, found
    finding = found.pop(fault.code)
    assert re.search(fault.says, finding["title"]), finding
    assert _culprits(finding) == set(fault.culprits), finding
    assert finding["remedies"], finding
    assert any(one["proof"]["status"] == "proved" for one in finding["remedies"]) == fault.proved, finding
    assert set(found) <= set(fault.also), found
    assert code == fault.exit


HEALTHY = {
    "2 of 8 A100": (ONE, 2, STANDARD),
    "4 of 8 A100": (ONE, 4, QUICK),
    "8 A100": (ONE, 8, QUICK),
    "a model of the user's": (ONE, 2, of_model("healthy")),
    "two hosts of 8 A100": (hosts(2, a100), 1, QUICK),
    "2 of 8 H100": (hosts(1, lambda _node: servers.dgx_h100(as_root=True)), 2, QUICK),
    "2 of 4 A100 PCIe": (hosts(1, lambda _node: servers.a100_pcie(as_root=True)), 2, QUICK),
    "2 of 4 H100 NVL": (hosts(1, lambda _node: servers.h100_nvl(as_root=True)), 2, QUICK),
    "2 of 8 V100": (hosts(1, lambda _node: servers.v100_dgx1(as_root=True)), 2, QUICK),
    "2 of 4 GB200": (hosts(1, lambda _node: servers.gb200(as_root=True)), 2, QUICK),
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_ddp_doctor_has_no_finding(kind: str):
    build, ranks, options = HEALTHY[kind]

    code, report = run(build(), ranks, options)

    assert [one["title"] for one in report["findings"] if one["code"] not in NOT_JUDGED] == []
    assert code == 0
    world = report["world"]
    assert (world["backend"], world["world_size"]) == ("nccl", ranks * world["nnodes"])
    assert {one["status"] for one in report["checks"]} <= {"passed", "found", "skipped"}, report["checks"]


def test_faults_of_nccls_own_diagnostics_on_two_hosts_make_the_run_unsure():
    """No data moves between simulated GPUs, so NCCL reports each path as faulty."""
    skip_where_none_can_be_planted()
    of = _env(0, 1, LD_PRELOAD=str(libnccl("2.32.3")))

    code, report = run(_TWO(), 2, ("--only", "process_group,nccl_diagnostics"), of)

    found = {one["code"]: one for one in report["findings"] if one["code"] not in NOT_JUDGED}
    assert set(found) <= {"DD205", "DD626"}, found
    named = {(one["rank"], one["peer_rank"]) for one in found["DD626"]["culprits"]}
    assert (named, report["verdict"], code) == ({(0, 1), (2, 3)}, "unsure", 3)


_EACH = ("--only", "process_group,collectives", "--sizes", "4K:1M:16", "--iters", "2")


def test_every_collective_is_correct_over_simulated_nccl():
    code, report = run(ONE(), 4, _EACH)

    assert ([one["title"] for one in report["findings"]], code) == ([], 0), report["checks"]
    measured = {one["name"].removesuffix("_busbw") for one in report["measurements"] if one["name"].endswith("_busbw")}
    assert measured == {name for name, row in TABLE.items() if row.is_timed}
    assert {one["value"] for one in report["measurements"] if one["name"].endswith("_wrong")} == {0}


def test_axes_of_a_mesh_are_correct_and_measured_over_simulated_nccl():
    code, report = run(ONE(), 4, ("--only", "process_group,mesh", "--mesh", "dp=2,shard=2", "--budget", "240"))

    assert ([one["title"] for one in report["findings"]], code) == ([], 0), report["checks"]
    rates = [one for one in report["measurements"] if one["name"].endswith("_busbw")]
    assert {(one["name"].removesuffix("_busbw"), one["labels"]["group"]) for one in rates} == {
        *((name, "of axis dp") for name in ("all_reduce", "broadcast", "all_gather", "reduce_scatter")),
        *((name, "of axis shard") for name in ("all_reduce", "all_gather", "reduce_scatter")),
    }


@pytest.mark.parametrize(
    ("model", "ranks", "code", "found"),
    [("sharded:plain", 4, 0, []), ("sharded_planted:other_units", 2, 1, ["DD790"])],
    ids=["sharded alike", "other units on one rank"],
)
def test_model_in_fully_shard_is_evaluated_over_simulated_nccl(model: str, ranks: int, code: int, found: list[str]):
    options = ("--only", "process_group,user_model", "--model", f"tests.models.{model}", "--budget", "240")
    ended_with, report = run(ONE(), ranks, options)

    assert ([one["code"] for one in report["findings"]], ended_with) == (found, code), report["checks"]


def test_rank_with_wrong_shares_is_reported_over_simulated_nccl():
    code, report = run(ONE(), 3, _EACH, {0: {"PLANTED_WRONG": "2"}})

    found = {one["title"].partition(" gives")[0]: one["culprits"] for one in report["findings"]}
    with_shares = {row.words.capitalize() for name, row in TABLE.items() if name not in (BARRIER, OBJECTS, GROUPS)}
    named = {words: [one["rank"] for one in found.get(words, ())] for words in with_shares}
    assert (named, code) == ({words: [2] for words in with_shares}, 1), report["checks"]


def test_ddp_trains_to_the_same_weights_on_all_ranks(tmp_path: Path):
    skip_where_none_can_be_planted()
    script = tmp_path / "train.py"
    script.write_text(TRAINS)

    with PlantedTorch([a100()]) as planted:
        ran = planted.ranks(script, 2, limit_s=LIMIT_S)

    assert [rank.code for rank in ran.values()] == [0, 0], ran
    assert "is not planted" not in ran[0].said + ran[1].said
    assert ran[0].output.splitlines()[-1] == ran[1].output.splitlines()[-1]
    assert ran[0].output.endswith("total 3.0\n")


#: Tests of tests/gpu that no simulated GPU can pass: tests of rates and times, because kernels run on the CPU, and of
#: memory in use, because NVML does not show torch's.
NOT_PLANTED = (
    "test_gpu_speed.py",
    "test_busy_gpu.py",
    "test_nothing_is_left.py::test_killed_",
    "test_nothing_is_left.py::test_stopped_",
    "test_run_on_gpu.py::test_a_run_uses_nccl_on_every_gpu_and_reads_nvml",
    "test_run_on_gpu.py::test_new_checks_of_ddp_pass_over_nccl_between_gpus",
    "test_ddp_checks.py::test_step_on_a_gpu_is_split_into_its_parts",
    "test_proofs.py::test_setting_without_effect_is_tried_and_not_recommended",
)


def test_tests_that_need_a_gpu_pass_on_two_simulated_a100():
    skip_where_none_can_be_planted()
    left_out = [word for name in NOT_PLANTED for word in ("--deselect", f"tests/gpu/{name}")]

    with PlantedTorch([two_a100()]) as planted:
        argv = ("-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", str(ROOT / "tests/gpu"), *left_out)
        run = ended(planted.start((planted.python, *argv)), LIMIT_S)

    assert run.code == 0, run.said
    assert not re.search(r"\d+ (skipped|xfailed)", run.said), run.said
