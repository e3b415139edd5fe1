"""The lab's hosts have their own network, name, processes and files, and never leave anything behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.conftest import answers
from tests.lab.hosts import PREFIX, ROOT, Lab, sweep, why_no_lab
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.lab

MAKE_A_LAB = """
import signal
from tests.lab.hosts import Lab
signal.signal(signal.SIGINT, signal.default_int_handler)
with Lab(nodes=2) as lab:
    running = [host.start(("sleep", "1000")).pid for host in lab.hosts]
    print(lab.folder, *running, *(host.pid for host in lab.hosts), flush=True)
    signal.pause()
"""


def test_every_host_reaches_every_other_by_name(lab, dial):
    for host in lab.hosts:
        for other in lab.hosts:
            assert "error" not in dial(host, other.name)


@pytest.mark.parametrize("address", ["10.77.0.1", "10.78.0.1", "fd77::1"])
def test_both_interfaces_and_both_families_work(lab, dial, address):
    assert "error" not in dial(lab["node3"], address)


def test_a_host_has_its_own_name_processes_and_files(lab):
    said = lab["node2"].run(("sh", "-c", "hostname; ls /dev/shm; ls /sys/class/net; echo $HOME; echo $$"))
    name, *interfaces, home, pid = said.stdout.split()
    assert (name, sorted(interfaces)) == ("node2", ["eth0", "eth1", "lo"])
    assert Path(home) == lab["node2"].folder / "home"
    assert int(pid) < 100


def test_host_sees_no_process_of_another_host(lab):
    with_sleep = lab["node1"].start(("sleep", "77"))
    assert lab["node1"].wait_for_process("sleep") == with_sleep.pid
    assert lab["node0"].find_process("sleep") is None
    assert "sleep" not in lab["node0"].run(("ps", "-e", "-o", "comm")).stdout
    with_sleep.kill()
    assert with_sleep.wait() == -signal.SIGKILL


def test_unknown_host_name_does_not_resolve(lab, dial):
    assert dial(lab["node1"], "node9")["error"] == "no such name"


def test_output_exit_code_and_environment_of_a_command(lab):
    started = lab.start_everywhere(
        lambda host: ("sh", "-c", f'echo "$WHO"; echo no >&2; exit {host.index}'),
        env_of=lambda host: {"WHO": f"I am {host.name}"},
    )
    assert [started[host.name].wait() for host in lab.hosts] == [0, 1, 2, 3]
    assert started["node3"].output() == "I am node3\n"
    assert started["node3"].errors() == "no\n"


def test_orphan_that_exits_is_reaped(lab):
    lab["node0"].run(("sh", "-c", "sleep 1000 >/dev/null 2>&1 & exit 0"))
    os.kill(lab["node0"].wait_for_process("sleep"), signal.SIGKILL)
    wait_until(lambda: lab["node0"].find_process("sleep") is None, "the orphan is reaped")


def test_remains_of_a_command_are_reported(lab):
    with Lab(nodes=1) as other:
        node0 = other["node0"]
        assert other.left_behind() == []
        node0.run(("sh", "-c", "echo x >/dev/shm/segment; echo x >$TMPDIR/file"))
        orphan = node0.start(("sh", "-c", "sleep 55 & exit 0"))
        assert orphan.wait() == 0
        node0.wait_for_process("sleep")
        left = [line.split()[-1] for line in other.left_behind(grace_s=0.1)]
    assert left == ["sleep", "/dev/shm/segment", "$TMPDIR/file"]


def test_two_labs_with_the_same_addresses_are_separate(lab, dial):
    with Lab(nodes=2) as other:
        assert dial(other["node0"], "node1")["error"] == "ECONNREFUSED"  # lab's node1 would answer
        assert "error" not in dial(lab["node0"], "node1")


@pytest.mark.parametrize("network", ["192.168.77", "172.16.5"])
def test_network_of_a_lab_can_be_chosen(lab, dial, network):
    with Lab(nodes=2, network=network) as other:
        assert other["node1"].address == f"{network}.2"
        answers(other["node1"])
        assert "error" not in dial(other["node0"], "node1")


def test_lab_works_with_ipv6_only(lab, dial):
    with Lab(nodes=2, ipv6="only") as other:
        assert other["node1"].address == "fd77::2"
        assert "inet " not in other["node1"].run(("ip", "address", "show", "eth0")).stdout
        answers(other["node1"])
        assert "error" not in dial(other["node0"], "node1")


@pytest.mark.parametrize(
    "ended_by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["Ctrl-C", "SIGTERM", "SIGKILL"]
)
def test_no_process_survives_the_process_that_made_the_lab(ended_by):
    if reason := why_no_lab():
        pytest.skip(reason)
    maker = subprocess.Popen(
        (sys.executable, "-c", MAKE_A_LAB), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    )
    with maker:
        assert maker.stdout is not None
        folder, *running = maker.stdout.readline().split()
        maker.send_signal(ended_by)
        maker.wait(LIMIT_S)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in running), "no process of the lab runs")
    sweep()
    assert not Path(folder).exists()


def test_files_of_living_labs_are_not_swept(lab):
    sweep()
    assert lab.folder.name.startswith(f"{PREFIX}{os.getpid()}-")
    assert lab.folder.is_dir()
