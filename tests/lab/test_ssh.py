"""`ddp-doctor run --hosts` through real ssh and real sshds, one on each host of the lab."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.hosts import Host, Lab, why_no_lab

pytestmark = pytest.mark.lab

RUN = (sys.executable, "-m", "ddp_doctor", "run", "--level", "quick", "--only", "process_group")
SSHD = """
Port 22
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
PermitRootLogin yes
UsePAM no
PidFile none
SetEnv TMPDIR={host}/tmp XDG_STATE_HOME={host}/home/.local/state PYTHONDONTWRITEBYTECODE=1
"""
SSH = """
Host *
    IdentityFile {folder}/user
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known
    StrictHostKeyChecking yes
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := why_no_lab("sshd", "ssh", "ssh-keygen"):
        pytest.skip(reason)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where sshd locks itself in
    with Lab(nodes=3) as lab:
        folder = lab.folder / "ssh"
        folder.mkdir()
        for key in ("user", "host"):
            subprocess.run(
                ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key), check=True, timeout=20
            )
        (folder / "config").write_text(SSH.format(folder=folder))
        (folder / "ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/config "$@"\n')
        (folder / "ssh").chmod(0o755)
        for host in lab.hosts:
            (folder / f"{host.name}.conf").write_text(SSHD.format(folder=folder, host=host.folder))
            sshd = f"exec /usr/sbin/sshd -D -e -f {folder}/{host.name}.conf 2>&1"
            host.start(("sh", "-c", sshd)).wait_for_output("Server listening")
        yield lab


@pytest.fixture(autouse=True)
def _known(lab: Lab) -> None:
    key = (lab.folder / "ssh/host.pub").read_text()
    (lab.folder / "ssh/known").write_text("".join(f"{host.name} {key}" for host in lab.hosts))


def environment(lab: Lab, host: Host) -> dict[str, str]:
    """The user's own ssh is that of the lab."""
    return {"PATH": f"{lab.folder}/ssh:{host.environment['PATH']}"}


def test_typed_on_a_host_outside_the_list_it_tests_all_of_the_list_and_reports_there(lab):
    outside = lab["node2"]
    done = outside.run(
        (*RUN, "--hosts", "node0,root@node1", "--json", "out-%h.json"),
        env={**environment(lab, outside), "NCCL_DEBUG": "INFO"},
        timeout_s=90,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((outside.folder / "home/out-node2.json").read_text())
    assert [node["hostname"] for node in report["world"]["nodes"]] == ["node0", "node1"]
    assert done.stdout.count("Healthy: ") == 1
    kept = [len(list((host.folder / "home").rglob("recording*.json"))) for host in lab.hosts]
    assert kept == [1, 1, 1]


def test_a_host_with_an_unknown_key_is_named_with_sshs_words_and_its_key_is_not_learnt(lab):
    key = (lab.folder / "ssh/host.pub").read_text()
    known = lab.folder / "ssh/known"
    known.write_text(f"node0 {key}")
    started = time.monotonic()
    done = lab["node0"].run(
        (*RUN, "-q", "--hosts", "node0,node1"), env=environment(lab, lab["node0"]), timeout_s=90, check=False
    )

    assert done.returncode == 1, done.stdout + done.stderr
    assert "Host key verification failed" in done.stdout.splitlines()[-1]
    assert "node1" in done.stdout.splitlines()[-1]
    assert known.read_text() == f"node0 {key}"
    assert time.monotonic() - started < 40  # and not the 60 s of --join-timeout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_command_is_ended(lab, number):
    before = {pid for host in lab.hosts for pid in host.pids()}
    started = lab["node0"].start(
        (*RUN, "--nnodes", "3", "--hosts", "node0,node1,node2"), env=environment(lab, lab["node0"])
    )
    started.wait_for_output("import torch")
    assert started.pid is not None
    os.kill(started.pid, number)

    assert started.wait(30) == (130 if number == signal.SIGINT else -number)
    assert lab.left_behind(grace_s=10, without=before) == []
