"""`ddp-doctor run --hosts` through real ssh and real sshds, one on each host of the lab."""

import json
import os
import re
import signal
import sys

import pytest

from tests.lab.hosts import Lab
from tests.lab.sshd import environment, know_hosts

pytestmark = pytest.mark.lab

RUN = (sys.executable, "-m", "ddp_doctor", "run", "--level", "quick", "--only", "process_group")


@pytest.fixture(autouse=True)
def _known(ssh_lab: Lab) -> None:
    know_hosts(ssh_lab)


def test_command_on_an_unlisted_host_tests_the_listed_hosts_and_writes_the_report(ssh_lab):
    outside = ssh_lab["node2"]
    done = outside.run(
        (*RUN, "--hosts", "node0,root@node1", "--json", "out-%h.json"),
        env={**environment(ssh_lab, outside), "NCCL_DEBUG": "INFO"},
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((outside.folder / "home/out-node2.json").read_text())
    assert [node["hostname"] for node in report["world"]["nodes"]] == ["node0", "node1"]
    assert done.stdout.count("Healthy: ") == 1
    kept = [len(list((host.folder / "home").rglob("recording*.json"))) for host in ssh_lab.hosts]
    assert kept == [1, 1, 1]


def test_host_with_an_unknown_key_is_reported_with_the_message_of_ssh(ssh_lab):
    key = (ssh_lab.folder / "ssh/host.pub").read_text()
    known = ssh_lab.folder / "ssh/known"
    known.write_text(f"node0 {key}")
    done = ssh_lab["node0"].run(
        (*RUN, "-q", "--join-timeout", "1000", "--hosts", "node0,node1"),  # it does not wait for the join timeout
        env=environment(ssh_lab, ssh_lab["node0"]),
        check=False,
    )

    assert done.returncode == 1, done.stdout + done.stderr
    assert "Host key verification failed" in done.stdout.splitlines()[-1]
    assert "node1" in done.stdout.splitlines()[-1]
    assert known.read_text() == f"node0 {key}"


def test_users_model_runs_on_every_host_and_the_rank_with_the_hook_is_reported(ssh_lab):
    options = ("--only", "user_model", "--model", "tests.models.planted:hooked_on_one_rank", "--json", "model.json")
    done = ssh_lab["node0"].run(
        (*RUN[:-2], *options, "--hosts", "node0,node1,node2", "--nproc-per-node", "1"),
        env=environment(ssh_lab, ssh_lab["node0"]),
        check=False,
    )

    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((ssh_lab["node0"].folder / "home/model.json").read_text())
    (finding,) = [one for one in report["findings"] if one["severity"] != "info"]
    assert finding["code"] == "DD781"
    assert [(one["rank"], one["node"]) for one in finding["culprits"] if one["kind"] == "rank"] == [(1, "node1")]
    assert "only rank 1 has a hook on head.weight" in finding["title"]
    assert re.search(r"bucket +size +parameters", done.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_command_leaves_no_processes(ssh_lab, number):
    before = {pid for host in ssh_lab.hosts for pid in host.pids()}
    started = ssh_lab["node0"].start(
        (*RUN, "--nnodes", "2", "--hosts", "node0,node2"), env=environment(ssh_lab, ssh_lab["node0"])
    )
    ssh_lab["node2"].wait_for_process("ddp-doctor:fork")
    assert started.pid is not None
    os.kill(started.pid, number)

    assert started.wait() == (130 if number == signal.SIGINT else -number)
    assert ssh_lab.left_behind(without=before) == []
