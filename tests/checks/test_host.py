"""The host check: this machine's real limits, and made-up files; recordings show what each limit means for a job."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass, field

import pytest

from ddp_doctor.app import redaction
from ddp_doctor.checks.node.host import CHECK, probe
from ddp_doctor.facts.node.host import Host
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.context import Disk, Interface
from ddp_doctor.model.recording import Recording
from ddp_doctor.probing import host_limits
from ddp_doctor.sources.machine import LiveContext
from tests.fakes import FakeContext
from tests.readings import findings_of, of_nodes, plain_world
from tests.recordings import load

KIB, MIB, GIB = 1024, 1024**2, 1024**3


def severities(fact: Host) -> list[Severity]:
    """Return the severities of the findings about a node of two ranks over gloo."""
    recording = Recording(world=plain_world(1, 2), readings=of_nodes("host", [fact]))
    return [finding.severity for finding in findings_of(CHECK, recording)]


def test_this_machine_is_read_as_system_calls_report_it():
    live = LiveContext({"OMP_NUM_THREADS": "3"}, time.monotonic() + 60)
    fact = probe(live)
    assert fact.kernel == os.uname().release
    assert fact.cpus == len(os.sched_getaffinity(0))
    assert fact.host_cpus is not None
    assert fact.host_cpus >= fact.cpus
    assert fact.omp_num_threads == 3
    assert fact.memory_available_bytes is not None
    assert fact.memory_total_bytes is not None
    assert 0 < fact.memory_available_bytes <= fact.memory_total_bytes
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert fact.open_files == (None if soft == resource.RLIM_INFINITY else soft)
    assert live.raw is not None
    assert "MemAvailable" in live.raw


def test_this_machine_is_healthy_for_two_ranks_on_gloo():
    fact = probe(LiveContext(dict(os.environ), time.monotonic() + 60))
    assert set(severities(fact)) <= {Severity.INFO}


def test_machine_with_unknown_limits_has_no_finding():
    assert severities(Host(cpus=8)) == []


FILES = {
    "/proc/meminfo": "MemTotal:       16384000 kB\nMemAvailable:    8192000 kB\n",
    "/proc/loadavg": "3.25 1.11 0.99 2/138 16370\n",
    "/proc/stat": "cpu  1 2 3\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5\n",
    "/proc/sys/kernel/osrelease": "5.15.0\n",
    "/proc/self/status": "Name:\tx\nCapEff:\t0000000000000000\n",
    "/proc/self/uid_map": "         0          0 4294967295\n",
    "/proc/self/cgroup": "0::/\n",
    "/proc/self/mountinfo": "35 25 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "/sys/fs/cgroup/cpu.max": "150000 100000\n",
    "/sys/fs/cgroup/memory.max": "1073741824\n",
    "/sys/fs/cgroup/memory.current": "1073741824\n",
    "/sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 73741824\n",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
    "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
    "/sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
    "/.dockerenv": "",
}


def test_a_container_is_read_from_its_files():
    context = FakeContext(
        files=FILES,
        env={"NCCL_IB_DISABLE": "1"},
        disks={"/dev/shm": Disk(67108864, 0, 51)},
        limits={"MEMLOCK": 65536, "NOFILE": 1024},
        cpu_count=2,
    )
    assert probe(context) == Host(
        kernel="5.15.0",
        in_container=True,
        cpus=2,
        host_cpus=2,
        cpu_quota_cpus=1.5,
        load_1min=3.25,
        memory_total_bytes=16384000 * KIB,
        memory_available_bytes=8192000 * KIB,
        cgroup_memory_limit_bytes=GIB,
        cgroup_memory_free_bytes=73741824,
        shm_total_bytes=67108864,
        shm_free_bytes=0,
        shm_device=51,
        memlock_bytes=65536,
        open_files=1024,
        clock_source="hpet",
        rdma_devices=("mlx5_0",),
        rdma_unused_by="NCCL_IB_DISABLE=1",
    )


def test_unreadable_values_are_none_and_never_a_finding():
    fact = probe(FakeContext(cpu_count=8))
    assert fact == Host(cpus=8, shm_problem="/dev/shm does not exist")
    assert severities(fact.model_copy(update={"shm_problem": "/dev/shm: Input/output error"})) == []


def test_unwritable_shared_memory_is_recorded_with_its_size():
    fact = probe(FakeContext(disks={"/dev/shm": Disk(GIB, GIB, problem="is mounted read-only")}))
    assert (fact.shm_free_bytes, fact.shm_problem) == (GIB, "/dev/shm is mounted read-only")


def test_file_system_reports_why_no_file_can_be_created(monkeypatch, tmp_path):
    context = LiveContext({}, 0.0)
    assert context.disk(str(tmp_path)).problem is None
    real = os.statvfs(tmp_path)
    changed = {os.ST_RDONLY: (*real[:8], real.f_flag | os.ST_RDONLY, real.f_namemax), 0: (*real[:7], 0, *real[8:])}
    for said, values in zip(("is mounted read-only", "has no room for one more file"), changed.values(), strict=True):
        monkeypatch.setattr(os, "statvfs", lambda _path, values=values: os.statvfs_result(values))
        assert context.disk(str(tmp_path)).problem == said
    monkeypatch.setattr(os, "statvfs", lambda _path: real)
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert context.disk(str(tmp_path)).problem == "may not be written to by this user"


@pytest.mark.parametrize(
    ("network", "problem"),
    [
        ((Interface(name="lo", loopback=True, addresses=("127.0.0.1/8", "::1/128")),), None),
        ((Interface(name="lo", loopback=True, addresses=("127.0.0.2/8",)),), None),
        ((Interface(name="eth0", addresses=("10.0.0.1/24",)),), None),  # a list without lo gives no information
        ((Interface(name="lo", loopback=True, up=False, running=False),), "lo is down"),
        ((Interface(name="lo", loopback=True, addresses=("::1/128",)),), "lo has no address 127.0.0.1"),
        ((Interface(name="lo", loopback=True, addresses=("127.0.1.1/32",)),), "lo has no address 127.0.0.1"),
    ],
)
def test_a_loopback_interface_is_up_and_has_127_0_0_1(network, problem):
    assert probe(FakeContext(network=network)).loopback_problem == problem


def test_tmpfs_without_limit_is_not_full():
    fact = probe(FakeContext(disks={"/dev/shm": Disk(0, 0)}))
    assert (fact.shm_total_bytes, fact.shm_free_bytes, fact.shm_problem) == (None, None, None)


def test_processes_of_a_busy_host_are_redacted():
    recording = load("host/busy-host")

    assert "stress" in recording.model_dump_json()
    assert "stress" not in redaction.redacted(recording).model_dump_json()


@dataclass
class TwoLooks(FakeContext):
    """A context that shows a file's first line at the first read and its second afterwards."""

    seen: set[str] = field(default_factory=set)

    def read(self, path: str) -> str:
        lines = super().read(path).split("\n")
        again = path in self.seen
        self.seen.add(path)
        return lines[-1] if again else lines[0]


def test_busiest_processes_are_other_processes_that_use_a_cpu_now():
    second = os.sysconf("SC_CLK_TCK")
    looks = {
        1: ("init", 0, 900 * second, 900 * second),  # much long ago
        20: ("a) b (c", 1, 0, 3 * second),
        21: ("idle", 1, 0, 0),
        22: ("cc1plus", 1, 5, 5 + second),
        23: ("third", 1, 5, 5 + second // 2),
        30: ("ddp-doctor", 1, 0, 4 * second),
        31: ("a rank of ours", 30, 0, 4 * second),
    }
    line = "{} ({}) R {} 1 1 0 -1 4194304 1 0 0 0 {} 0 0 0 20 0 1 0 5 6 7"
    files: dict[str, str | OSError] = {
        f"/proc/{pid}/stat": "\n".join(line.format(pid, name, parent, ticks) for ticks in both)
        for pid, (name, parent, *both) in looks.items()
    }

    found = host_limits.busiest(TwoLooks(files=files, links={"/proc/self": "30"}))

    assert [(one.name, one.pid) for one in found] == [("a) b (c", 20), ("cc1plus", 22)]
    assert found[0].cpus > 2 * found[1].cpus > 0
