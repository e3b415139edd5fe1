"""The whole run on real GPUs: NCCL over one rank, over all GPUs, and over two ranks that share one GPU."""

from pathlib import Path

import pytest

from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.nccl_log import parse_nccl_log
from tests.gpu import runs, smi
from tests.launch.agents import Agent, reports_of
from tests.once import free_port

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

#: Makes NCCL treat two processes on one GPU as two hosts: a rank with another host id has another host hash, so the
#: test for duplicate GPUs does not match, P2P and SHM refuse, and the network remains (NVIDIA/nccl, src/misc/utils.cc
#: and src/init.cc). NCCL does not support this, so the rates mean nothing.
SHARED_GPU = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",
    "CUDA_VISIBLE_DEVICES": "0",
}
RANK_CHECKS = (
    *("process_group", "allreduce", "initial_state", "gradient_sync"),
    *("buffers", "checkpoint", "p2p", "step_time", "collectives"),
)
#: Acceptable findings on a healthy machine: modes and formats that its torch lacks, and of step_time, that two ranks
#: which share a GPU and a loopback interface wait for it.
TOLD = {"DD810", "DD820"}


def logged(recording: Recording) -> NcclTransportFact:
    """Return NCCL's own log of all ranks of the last trial."""
    return parse_nccl_log("\n".join(one.output_tail for one in recording.trials[-1].evidence))


def test_a_run_uses_nccl_on_every_gpu_and_reads_nvml(tmp_path: Path):
    outcome = runs.run(tmp_path)
    status = outcome.statuses()

    assert outcome.report["world"]["backend"] == "nccl"
    assert outcome.code in (0, 1), outcome.report["summary"]
    assert status["gpus"] in ("passed", "found")
    assert status["process_group"] == status["allreduce"] == "passed", outcome.report
    assert status["gpu_speed"] in ("passed", "found")
    assert any(one["name"] == "allreduce_busbw" for one in outcome.report["measurements"])


def test_one_rank_over_nccl_passes_and_its_log_is_read(tmp_path: Path):
    options = ("--backend", "nccl", "--nproc-per-node", "1", "--level", "quick")
    outcome = runs.run(tmp_path, *runs.only("process_group", "allreduce"), *options)

    assert outcome.code == 0, outcome.report["summary"]
    status = outcome.statuses()
    assert status["process_group"] == status["allreduce"] == "passed"
    log = logged(outcome.recording)
    assert log.version is not None
    assert log.comm_sizes == (1,)
    assert [device.rank for device in log.devices] == [0]
    assert log.transports == ()  # no peer to talk to


def test_more_ranks_than_gpus_are_reported_without_a_hang(tmp_path: Path):
    ranks = str(len(smi.query("index")) + 1)
    outcome = runs.run(tmp_path, "--backend", "nccl", "--nproc-per-node", ranks, "--level", "quick")

    assert outcome.code == 1, outcome.report["summary"]


def test_two_ranks_on_one_gpu_pass_all_rank_checks_over_the_network(tmp_path: Path):
    """Start two agents of the real run, each a separate node with one rank and its own host id."""
    if smi.query("compute_mode")[0]["compute_mode"] != "Default":
        pytest.skip("needs a GPU in compute mode Default: two processes share it")
    port = free_port()
    options = (
        *("--backend", "nccl", "--nproc-per-node", "1", "--level", "thorough", "--budget", "200"),
        *runs.only(*RANK_CHECKS),
    )
    agents = [
        Agent(
            *(tmp_path, port, 2, node),
            *(*options, "--record", str(tmp_path / f"recording{node}.json")),
            more_env={**SHARED_GPU, "NCCL_HOSTID": f"host{node}"},
        )
        for node in range(2)
    ]
    reports, _ = reports_of(agents, 250)

    assert [agent.process.returncode for agent in agents] == [0, 0], agents[0].said.read_text()
    for report in reports:
        status = {check["id"]: check["status"] for check in report["checks"]}
        assert {status[check] for check in RANK_CHECKS[:2]} == {"passed"}
        assert not {
            check: status[check] for check in RANK_CHECKS if status[check] not in ("passed", "found", "skipped")
        }
        assert {finding["code"] for finding in report["findings"] if finding["code"] >= "DD7"} <= TOLD
    log = logged(Recording.model_validate_json((tmp_path / "recording0.json").read_text()))
    assert log.hosts == (2,)  # NCCL treats them as two hosts
    assert len({device.bus_id for device in log.devices}) == 1  # and they are on one GPU
    assert {transport.kind for transport in log.transports} == {"NET"}
    assert {(transport.network or ("", 0, False))[0] for transport in log.transports} == {"Socket"}
    assert {(one.from_rank, one.to_rank) for one in log.transports} >= {(0, 1), (1, 0)}


def test_transports_between_gpus_match_the_log(tmp_path: Path):
    if len(smi.query("index")) < 2:
        pytest.skip("needs two GPUs")
    outcome = runs.run(tmp_path, *runs.only("process_group", "allreduce"), "--level", "quick")
    log = logged(outcome.recording)

    assert log.hosts == (1,)
    assert log.transports
    assert {transport.kind for transport in log.transports} <= {"P2P", "SHM", "NET"}


def test_new_checks_of_ddp_pass_over_nccl_between_gpus(tmp_path: Path):
    gpus = len(smi.query("index"))
    if gpus < 2:
        pytest.skip("needs two GPUs")
    checks = ("process_group", *RANK_CHECKS[2:])
    outcome = runs.run(tmp_path, *runs.only(*checks), "--level", "thorough", "--budget", "180")

    assert outcome.report["world"]["backend"] == "nccl"
    assert outcome.code == 0, outcome.report["summary"]
    assert outcome.codes() <= TOLD
