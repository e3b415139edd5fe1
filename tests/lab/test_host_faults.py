"""Each fault of a machine, a name, an interface or an environment does what its name says."""

import signal
import socket

import pytest

from tests.lab import faults
from tests.lab.hosts import Lab, why_no_lab
from tests.lab.processes import state
from tests.waiting import wait_until

pytestmark = pytest.mark.lab


def test_stopped_process_continues_when_the_fault_is_undone(lab):
    sleeper = lab["node1"].start(("sleep", "88"))
    with faults.plant(lab, "stop:node1:sleep"):
        assert state(sleeper.pid) == "T"
    wait_until(lambda: state(sleeper.pid) in ("S", "R"), "the process goes on")
    with faults.plant(lab, "stop-all:node1"):
        assert {state(pid) for pid in lab["node1"].pids()} == {"T"}
    faults.plant(lab, "kill:node1:sleep")
    assert sleeper.wait() == -signal.SIGKILL


def test_all_processes_of_a_host_are_killed_and_the_host_stays_up(two_hosts):
    sleepers = [host.start(("sleep", "88")) for host in two_hosts.hosts for _ in range(2)]
    assert all(each.pid for each in sleepers)
    faults.plant(two_hosts, "kill-all:node1")
    assert [each.wait() for each in sleepers[2:]] == [-signal.SIGKILL] * 2
    assert [each.poll() for each in sleepers[:2]] == [None, None]
    assert two_hosts["node1"].is_up


def test_host_without_power_stops_responding_and_can_be_booted_again(two_hosts, dial):
    node0, node1 = two_hosts.hosts
    listener = ("python", "-c", LISTEN.format(port=4000))
    server = node0.start(listener)
    server.wait_for_output("ready")
    client = node1.start(("python", "-c", CONNECT.format(host="node0", port=4000)))
    server.wait_for_output("connected")
    off = faults.plant(two_hosts, "power-off:node1")
    assert client.poll() is not None
    assert node1.pids() == []
    assert dial(node0, "10.77.0.2", timeout_s=0.3)["error"] == "timeout"
    assert "closed" not in server.output(), "a FIN or RST came through"
    off.undo()
    assert dial(node0, "node1")["error"] == "ECONNREFUSED"


LISTEN = """
import socket
listener = socket.create_server(("", {port}))
print("ready", flush=True)
connection, _ = listener.accept()
print("connected", flush=True)
connection.recv(1)
print("closed", flush=True)
"""
CONNECT = """
import signal, socket
connection = socket.create_connection(("{host}", {port}))
signal.pause()
"""


def test_occupied_port_is_in_use_and_never_answers(lab, dial):
    with faults.plant(lab, "held-port:node1:4100"):
        said = dial(lab["node0"], "node1", port=4100, timeout_s=0.3)
        assert "connect_s" in said
        assert said["error"] == "timeout"
    assert dial(lab["node0"], "node1", port=4100)["error"] == "ECONNREFUSED"


def addresses(host, name: str) -> list[str]:
    found = host.run(("getent", "ahosts", name), check=False).stdout
    return list(dict.fromkeys(line.split()[0] for line in found.splitlines()))


def test_names_resolve_differently_on_one_host_only(lab):
    node0, node1 = lab["node0"], lab["node1"]
    everywhere = addresses(node0, "node1")
    with faults.plant(lab, "loopback-name:node1"):
        assert addresses(node1, "node1") == ["127.0.1.1"]
        assert addresses(node0, "node1") == everywhere
    with faults.plant(lab, "forget-name:node1:node0"):
        assert addresses(node1, "node0") == []
        assert addresses(node0, "node0") != []
    with faults.plant(lab, "names-of-family:node1:6"):
        assert addresses(node1, "node0") == ["fd77::1"]
    assert addresses(node1, "node1") == everywhere
    assert sorted(everywhere) == ["10.77.0.2", "fd77::2"]


def test_a_host_of_one_family_is_out_of_reach_for_the_other(lab, dial):
    with faults.plant(lab, "only-family:node0:6"), faults.plant(lab, "only-family:node1:4"):
        assert addresses(lab["node2"], "node0") == ["fd77::1"]
        assert dial(lab["node1"], "node0")["error"] == "ENETUNREACH"
        assert "error" not in dial(lab["node2"], "node0")
    assert "error" not in dial(lab["node1"], "fd77::1")


def test_interfaces_without_a_connection_are_added(lab: Lab):
    def interfaces() -> str:
        return lab["node1"].run(("ip", "-brief", "address")).stdout

    with faults.plant(lab, "bridge-interface:node1"), faults.plant(lab, "uncabled-interface:node1"):
        lines = {line.split()[0].partition("@")[0]: line for line in interfaces().splitlines()}
        assert "172.17.0.1/16" in lines["docker0"]
        assert "10.99.0.1/24" in lines["ib0"]
        assert "UP" in lines["ib0"]
    assert "docker0" not in interfaces()
    assert "ib0" not in interfaces()


def test_a_variable_is_set_on_one_host_only(lab):
    with faults.plant(lab, "environment:node1:NCCL_SOCKET_IFNAME==eth0,eth1"):
        said = [lab[name].run(("printenv", "NCCL_SOCKET_IFNAME"), check=False).stdout for name in NAMES]
    assert said == ["", "=eth0,eth1\n"]


NAMES = ("node0", "node1")
CLOCKS = """
import os, tempfile, time
began = time.monotonic()
time.sleep(0.1)
slept = time.monotonic() - began
with tempfile.NamedTemporaryFile() as file:
    print(time.time() - os.stat(file.name).st_mtime, slept)
"""


@pytest.mark.parametrize("skew_s", [3600, -90])
def test_a_wrong_clock_does_not_change_how_long_a_sleep_takes(lab, skew_s):
    if reason := why_no_lab("cc"):
        pytest.skip(reason)
    with faults.plant(lab, f"skewed-clock:node1:{skew_s}"):
        ahead_s, slept = map(float, lab["node1"].run(("python", "-c", CLOCKS)).stdout.split())
    assert ahead_s == pytest.approx(skew_s, abs=30)
    assert 0.1 <= slept < 30


VERSION = "import importlib.metadata as m, {0}; print({0}.__version__, m.version('{0}'.replace('_', '-')))"


@pytest.mark.parametrize("package", ["ddp_doctor", "torch"])
def test_other_version_is_imported_and_in_the_metadata(lab, package):
    with faults.plant(lab, f"other-version:node1:{package}:1.2.3"):
        assert lab["node1"].run(("python", "-c", VERSION.format(package))).stdout.split() == ["1.2.3"] * 2
    assert "1.2.3" not in lab["node1"].environment["PYTHONPATH"]


@pytest.mark.parametrize(
    "text", ["no-such-fault", "loss", "loss:node9", "loss:node1:much", "cut-path:node1", "silence:node1:x"]
)
def test_invalid_fault_is_refused_with_its_notation(lab, text):
    with pytest.raises(ValueError, match=r"loss:HOST|no fault|cut-path:HOST:PEER|silence:HOST"):
        faults.plant(lab, text)


def test_name_of_this_machine_is_unchanged(lab):
    assert not socket.gethostname().startswith("node")
