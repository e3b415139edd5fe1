"""`mpirun ddp-doctor run` with a real Open MPI, which reaches the hosts of the lab through real sshds."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ddp_doctor.features.jobs.attach.use_case import attach
from ddp_doctor.features.jobs.sources import live_jobs
from ddp_doctor.sources import proc
from tests.lab.hosts import WITHOUT_DDP, Host, Lab
from tests.lab.sshd import environment, know_hosts, serve_ssh, why_no_ssh
from tests.waiting import wait_until

pytestmark = pytest.mark.lab

RUN = (sys.executable, "-m", "ddp_doctor", "run", "--level", "quick", *WITHOUT_DDP, "--json", "report-%h.json")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := why_no_ssh("mpirun"):
        pytest.skip(reason)
    with Lab(nodes=3) as lab:
        serve_ssh(lab)
        know_hosts(lab)
        yield lab


def mpirun(lab: Lab, host: Host, *options: str) -> "subprocess.CompletedProcess[str]":
    """Typed on ``host``; the files that a rank writes land in that host's home."""
    ssh = lab.folder / "ssh/ssh"
    mca = ("--allow-run-as-root", "--mca", "plm_rsh_agent", str(ssh), "--mca", "oob_tcp_if_include", "eth0")
    return host.run(("mpirun", *mca, "--map-by", "node", *options, *RUN), env=environment(lab, host), check=False)


def the_report(lab: Lab) -> dict[str, Any]:
    """Return the only report: if one command starts all nodes, the head writes the requested outputs."""
    (path,) = lab.folder.rglob("report-*.json")
    report: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    return report


def test_several_tasks_of_a_node_have_one_agent(lab):
    done = mpirun(lab, lab["node2"], "-H", "node0:2,node1:2", "-n", "4")

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Healthy: 4 ranks on 2 nodes passed over gloo") == 1
    world = the_report(lab)["world"]
    assert world["launcher"] == "mpi"
    assert (world["nnodes"], world["nproc_per_node"], world["world_size"]) == (2, 2, 4)
    assert [node["hostname"] for node in world["nodes"]] == ["node0", "node1"]


def test_setting_of_mpirun_on_all_nodes_is_evaluated_with_exit_code_1(lab):
    done = mpirun(lab, lab["node0"], "-H", "node0,node1", "-n", "2", "-x", "GLOO_SOCKET_IFNAME=ib0")

    assert done.returncode == 1, done.stdout + done.stderr
    report = the_report(lab)
    assert (report["world"]["nnodes"], report["world"]["world_size"]) == (2, 2)
    (found,) = [one for one in report["findings"] if one["severity"] == "error"]
    assert found["code"] == "DD521"
    assert {culprit["name"] for culprit in found["culprits"]} == {"GLOO_SOCKET_IFNAME"}


def test_attach_names_the_program_that_mpirun_waits_for(lab, tmp_path):
    agent = tmp_path / "agent"
    agent.write_text("#!/bin/sh\nexec sleep 600\n")
    agent.chmod(0o755)
    options = ("--allow-run-as-root", "--mca", "plm_rsh_agent", str(agent), "--mca", "oob_tcp_if_include", "eth0")
    job = lab["node0"].start(("mpirun", *options, "-H", "node1", sys.executable, "train.py"))
    pid = wait_until(lambda: job.pid)
    started = wait_until(
        lambda: [child for child in live_jobs.Host().tree.get(pid, ()) if proc.command(child)[:1] == ["sleep"]]
    )
    report = attach([pid]).report

    assert report.exit_code == 3
    assert report.findings[0].title == f"mpirun (pid {pid}) waits for sleep 600 (pid {started[0]})"
