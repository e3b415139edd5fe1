"""`ddp-doctor attach` on several hosts over ssh, and on a job in a container, from outside and from inside."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.app.attach import attach
from ddp_doctor.model.report import AttachReport
from ddp_doctor.sources import proc
from tests.lab.hosts import ROOT, Lab, why_no_lab
from tests.lab.processes import PATIENCE_S
from tests.lab.sshd import environment, know_hosts

pytestmark = pytest.mark.lab

SPREAD = ROOT / "tests/attach/spread.py"
ATTACH = (sys.executable, "-m", "ddp_doctor", "attach")


def rank_of(rank: int, size: int, head: str, local: int = 0, local_size: int = 1) -> dict[str, str]:
    """What torchrun gives a rank."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    numbers = dict(zip(names, map(str, (rank, size, local, local_size)), strict=True))
    return {**numbers, "MASTER_ADDR": head, "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1"}


def seen(pid: int) -> tuple[str, str, str, int]:
    """What must be the same after a look at a process: state, tracer, signals, open files."""
    status = proc.status(pid)
    state = status["State"][0].replace("R", "S")
    return state, status["TracerPid"], status["SigPnd"], len([*Path(f"/proc/{pid}/fd").iterdir()])


@pytest.fixture(scope="module")
def job(ssh_lab: Lab) -> list[int]:
    """A rank on each host, the last of which stands still."""
    started = [
        host.start((sys.executable, SPREAD), env=rank_of(host.index, 3, "node0")) for host in ssh_lab.hosts
    ]
    for process in started:
        process.wait_for_output("begun")
    time.sleep(1.0)  # until the first two wait
    return [process.pid for process in started if process.pid is not None]


def attached(ssh_lab: Lab, *options: str) -> tuple[int, dict[str, Any], str]:
    head = ssh_lab["node0"]
    done = head.run(
        (*ATTACH, *options, "--json", "attach.json"),
        env=environment(ssh_lab, head),
        timeout_s=PATIENCE_S,
        check=False,
    )
    return done.returncode, json.loads((head.folder / "home/attach.json").read_text()), done.stdout


def culprits(report: dict[str, Any]) -> list[tuple[int, str]]:
    return [(one["rank"], one["node"]) for finding in report["findings"] for one in finding["culprits"]]


def test_over_ssh_the_rank_of_another_host_is_named_and_each_process_is_as_before(ssh_lab, job):
    know_hosts(ssh_lab)
    before = [seen(pid) for pid in job]

    code, report, text = attached(ssh_lab, "--hosts", "node0,node1,node2")

    assert code == 1, text
    assert culprits(report) == [(2, "node2")]
    assert [(one["rank"], one["node"]) for one in report["ranks"]] == [
        (0, "node0"),
        (1, "node1"),
        (2, "node2"),
    ]
    assert [seen(pid) for pid in job] == before


def test_a_host_that_ssh_does_not_reach_is_named_and_no_rank_is_blamed_for_it(ssh_lab, job):
    key = (ssh_lab.folder / "ssh/host.pub").read_text()
    (ssh_lab.folder / "ssh/known").write_text(f"node0 {key}node1 {key}")

    code, report, text = attached(ssh_lab, "--hosts", "node0,node1,node2")

    assert code == 3, text
    assert culprits(report) == []
    (line,) = [line for line in text.splitlines() if line.startswith("node2 could not be read: ")]
    assert line.endswith("Host key verification failed.")
    assert "Rank 2 was not seen" in text


def test_a_job_in_a_container_is_read_from_the_host_by_the_numbers_and_files_of_the_container(tmp_path):
    if reason := why_no_lab("unshare"):
        pytest.skip(reason)
    inside = tmp_path / "inside.sh"
    inside.write_text(
        f"mount -t tmpfs none /srv && cp {SPREAD} /srv/train.py && cd /srv || exit 1\n"
        f"for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank {sys.executable} train.py & done; wait\n"
    )
    environ = {**os.environ, **rank_of(0, 2, "127.0.0.1", local_size=2)}
    namespaces = ("--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net")
    command = ("unshare", *namespaces, "sh", "-c", f"ip link set lo up; exec sh {inside}")
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, start_new_session=True) as container:
        try:
            assert container.stdout is not None
            assert [container.stdout.readline() for _ in range(2)] == [b"begun\n"] * 2
            time.sleep(1.0)
            first = next(pid for pid in proc.pids() if proc.parent(pid) == container.pid)

            report = attach([first]).report
            by_hand = ("nsenter", "-t", str(first), "-p", "-m", *ATTACH)
            from_inside = subprocess.run(
                by_hand, env=os.environ, cwd=ROOT, capture_output=True, text=True, check=False
            )
        finally:
            container.kill()
    assert isinstance(report, AttachReport)
    assert [one.rank for cause in report.causes for one in cause.culprits] == [1]
    assert not Path("/srv/train.py").exists()
    assert ["/srv/train.py" in (one.line or "") for one in report.ranks] == [True, True]
    assert from_inside.returncode == 1, from_inside.stdout + from_inside.stderr
    assert "Seen from inside a container" in from_inside.stdout
