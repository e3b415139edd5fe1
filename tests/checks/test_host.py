"""The host check: this machine's real limits, made-up files, and what each limit means for a job."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.app import redaction
from ddp_doctor.checks.node.host import CHECK, probe
from ddp_doctor.facts.collectives import AllReduceFact
from ddp_doctor.facts.node.host import BusyProcess, Host
from ddp_doctor.model.choices import Severity, Status, Verdict
from ddp_doctor.model.context import Disk, Interface
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options, Recording, World
from ddp_doctor.probing import host_limits
from ddp_doctor.sources.machine import LiveContext
from tests.fakes import FakeContext
from tests.readings import findings_of, numbered_nodes, of_nodes, of_ranks

KIB, MIB, GIB = 1024, 1024**2, 1024**3

#: A well set up node with eight GPUs and InfiniBand.
GPU_NODE = Host(
    kernel="5.15.0-105-generic",
    cpus=128,
    host_cpus=128,
    load_1min=1.2,
    memory_total_bytes=1008 * GIB,
    memory_available_bytes=990 * GIB,
    shm_total_bytes=504 * GIB,
    shm_free_bytes=503 * GIB,
    open_files=1048576,
    clock_source="tsc",
    rdma_devices=("mlx5_0", "mlx5_1"),
)

PASSED = AllReduceFact(ranks=8, tested=("int64 sum",), repeatable=True)


def recording(*facts: Host, command: str = "run", **world: Any) -> Recording:
    shape: dict[str, Any] = {"nnodes": len(facts), "nproc_per_node": 8, "backend": "nccl", **world}
    size = shape["nnodes"] * shape["nproc_per_node"]
    return Recording(
        started_at="2026-01-15T10:00:00+00:00",
        world=World(world_size=size, nodes=numbered_nodes(len(facts)), **shape),
        options=Options(command=command),
        readings=of_nodes("host", facts),
    )


findings = partial(findings_of, CHECK)


def verdicts(*facts: Host, **world: Any) -> list[tuple[str, Severity]]:
    found = findings(recording(*facts, **world))
    return [(finding.code, finding.severity) for finding in found]


def but(**changes: object) -> Host:
    return GPU_NODE.model_copy(update=changes)


def test_this_machine_is_read_as_the_system_calls_tell():
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
    assert all(severity is Severity.INFO for _, severity in verdicts(fact, nproc_per_node=2, backend="gloo"))


def test_nothing_is_told_of_a_machine_that_tells_nothing():
    assert verdicts(Host(cpus=8)) == []


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


def test_what_cannot_be_read_is_none_and_never_a_finding():
    fact = probe(FakeContext(cpu_count=8))
    assert fact == Host(cpus=8, shm_problem="/dev/shm does not exist")
    assert verdicts(fact.model_copy(update={"shm_problem": "/dev/shm: Input/output error"})) == []


def test_a_shared_memory_that_takes_no_file_is_recorded_with_its_size():
    fact = probe(FakeContext(disks={"/dev/shm": Disk(GIB, GIB, problem="is mounted read-only")}))
    assert (fact.shm_free_bytes, fact.shm_problem) == (GIB, "/dev/shm is mounted read-only")


def test_a_file_system_says_why_no_file_can_be_made_on_it(monkeypatch, tmp_path):
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
        ((Interface(name="eth0", addresses=("10.0.0.1/24",)),), None),  # a list without lo tells nothing
        ((Interface(name="lo", loopback=True, up=False, running=False),), "lo is down"),
        ((Interface(name="lo", loopback=True, addresses=("::1/128",)),), "lo has no address 127.0.0.1"),
        ((Interface(name="lo", loopback=True, addresses=("127.0.1.1/32",)),), "lo has no address 127.0.0.1"),
    ],
)
def test_a_loopback_interface_is_up_and_has_127_0_0_1(network, problem):
    assert probe(FakeContext(network=network)).loopback_problem == problem


def test_a_host_whose_loopback_interface_is_down_is_named_in_run_and_prolog():
    for command in ("run", "prolog"):
        (finding,) = findings(recording(but(loopback_problem="lo is down"), command=command))
        assert (finding.code, finding.severity) == ("DD240", Severity.ERROR)
        assert [culprit.node for culprit in finding.culprits] == ["node0"]
    assert verdicts(GPU_NODE, but(loopback_problem="lo is down")) == [("DD240", Severity.ERROR)]
    of_two = verdicts(GPU_NODE, but(loopback_problem="lo has no address 127.0.0.1"))
    assert of_two == [("DD240", Severity.WARNING)]


TOO_MANY = "internal error: OSError: [Errno 24] Too many open files: '/x'"


def test_a_low_limit_of_files_that_something_ran_into_is_an_error_and_explains_it():
    few = but(open_files=100)
    failed = Reading(check="gpus", status=Status.FAILED, node=1, reason=TOO_MANY)
    seen = recording(few, few)
    seen = seen.model_copy(update={"readings": (*seen.readings, failed)})
    error, warning = findings(seen)
    assert (error.code, error.severity, error.culprits[0].node) == ("DD223", Severity.ERROR, "node1")
    assert error.evidence[0].text == "RLIMIT_NOFILE 100: OSError: [Errno 24] Too many open files: '/x'"
    assert (warning.code, warning.severity, warning.culprits[0].node) == ("DD223", Severity.WARNING, "node0")
    assert verdicts(but(open_files=15)) == [("DD223", Severity.ERROR)]  # 8 bare ranks need 16


def test_a_prolog_that_runs_out_of_files_is_unsure_for_its_own_limit():
    seen = recording(but(open_files=12), command="prolog")
    failed = Reading(check="gpus", status=Status.FAILED, reason=TOO_MANY)
    report = app.judge(seen.model_copy(update={"readings": (*seen.readings, failed)})).report
    assert report.verdict is Verdict.UNSURE
    assert report.summary.endswith(": ddp-doctor reached its limit of open files (ulimit -n).")


def test_a_tmpfs_without_limit_is_no_full_one():
    fact = probe(FakeContext(disks={"/dev/shm": Disk(0, 0)}))
    assert (fact.shm_total_bytes, fact.shm_free_bytes, fact.shm_problem) == (None, None, None)


@pytest.mark.parametrize(
    ("free", "backend", "ranks", "expected"),
    [
        (0, "nccl", 2, Severity.ERROR),
        (64 * MIB, "nccl", 2, Severity.WARNING),
        (256 * MIB, "nccl", 8, Severity.WARNING),
        (1 * GIB, "nccl", 8, None),
        (64 * MIB, "nccl", 1, Severity.WARNING),
        (0, "gloo", 2, Severity.WARNING),
        (64 * MIB, "gloo", 2, Severity.WARNING),
        (128 * MIB, "gloo", 2, None),
    ],
)
def test_shared_memory_counts_where_it_is_used(free, backend, ranks, expected):
    fact = but(shm_total_bytes=GIB, shm_free_bytes=free)
    found = verdicts(fact, nproc_per_node=ranks, backend=backend)
    assert found == ([("DD221", expected)] if expected else [])


@pytest.mark.parametrize(
    ("changes", "nodes", "backend", "expected"),
    [
        ({"memlock_bytes": 8 * MIB}, 2, "nccl", Severity.ERROR),
        ({"memlock_bytes": 64 * KIB}, 1, "nccl", Severity.WARNING),
        ({"memlock_bytes": 64 * KIB}, 2, "gloo", None),
        ({"memlock_bytes": 64 * KIB, "rdma_devices": ()}, 2, "nccl", None),
        ({"memlock_bytes": 64 * KIB, "rdma_unused_by": "NCCL_IB_DISABLE=1"}, 2, "nccl", None),
        ({"memlock_bytes": 64 * KIB, "memlock_is_ignored": True}, 2, "nccl", None),
        ({"memlock_bytes": 32 * GIB}, 2, "nccl", None),
        ({"memlock_bytes": None}, 2, "nccl", None),
    ],
)
def test_locked_memory_counts_only_where_nccl_uses_rdma(changes, nodes, backend, expected):
    found = verdicts(*[but(**changes)] * nodes, backend=backend)
    assert found == ([("DD222", expected)] if expected else [])


def test_too_little_memory_is_an_error_unless_ranks_have_run_or_another_job_may_hold_it():
    full = but(memory_available_bytes=900 * MIB)
    assert verdicts(full) == [("DD225", Severity.ERROR)]
    assert verdicts(full, command="prolog") == [("DD225", Severity.WARNING)]
    ran = recording(full)
    ran = ran.model_copy(update={"readings": (*ran.readings, *of_ranks("allreduce", [PASSED] * 8))})
    assert [(finding.code, finding.severity) for finding in findings(ran)] == [("DD225", Severity.WARNING)]


def test_a_quota_under_the_ranks_is_a_warning_for_nccl_and_information_for_gloo():
    (finding,) = findings(recording(but(cpu_quota_cpus=4.0)))
    assert (finding.code, finding.severity) == ("DD224", Severity.WARNING)
    assert "quota of 4" in finding.evidence[0].text
    assert verdicts(but(cpu_quota_cpus=4.0), backend="gloo") == [("DD224", Severity.INFO)]
    assert verdicts(but(cpu_quota_cpus=8.0)) == []
    assert verdicts(but(cpus=1)) == [("DD224", Severity.WARNING)]
    assert verdicts(but(cpu_quota_cpus=0.5), nproc_per_node=1) == []


@pytest.mark.parametrize(
    ("threads", "expected"), [(None, None), (1, None), (16, None), (32, Severity.INFO), (64, Severity.WARNING)]
)
def test_openmp_threads_against_cpus(threads, expected):
    found = verdicts(but(omp_num_threads=threads))
    assert found == ([("DD226", expected)] if expected else [])


def test_one_thread_each_is_never_too_many():
    assert verdicts(but(omp_num_threads=1, cpus=2)) == [("DD224", Severity.WARNING)]


BUSY = but(
    load_1min=300.0,
    busiest=(BusyProcess(name="stress", pid=4711, cpus=63.7), BusyProcess(name="cc1plus", pid=99, cpus=0.9)),
)


def test_a_busy_host_is_told_with_its_load_and_the_two_busiest_processes_by_name_and_pid():
    (finding,) = findings(recording(BUSY))
    assert finding.title == "Measurements on node0 may be too slow: load 300 on 128 CPUs"
    assert finding.evidence[0].text == "busiest: stress (pid 4711, 64 CPUs) and cc1plus (pid 99, 0.9 CPUs)"
    (redacted,) = findings(redaction.redacted(recording(BUSY)))
    assert redacted.evidence[0].text == "in the last minute"
    assert "stress" not in redacted.model_dump_json()


@dataclass
class TwoLooks(FakeContext):
    """Shows a file's first line at the first look, and its second from then on."""

    seen: set[str] = field(default_factory=set)

    def read(self, path: str) -> str:
        lines = super().read(path).split("\n")
        again = path in self.seen
        self.seen.add(path)
        return lines[-1] if again else lines[0]


def test_the_busiest_processes_are_those_of_others_that_use_a_cpu_now():
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


def test_a_prolog_does_not_judge_roots_own_limits():
    limits = but(memlock_bytes=64 * KIB, open_files=64, cpu_quota_cpus=0.5, omp_num_threads=512)
    assert findings(recording(limits, command="prolog")) == []
    full = limits.model_copy(update={"shm_free_bytes": 0})
    assert [finding.code for finding in findings(recording(full, command="prolog"))] == ["DD221"]


def test_many_nodes_with_one_fault_are_one_finding_that_shows_the_worst():
    nodes = [but(shm_free_bytes=free) for free in (5, 3, 900 * GIB, 4)]
    (finding,) = findings(recording(*nodes))
    assert finding.evidence[0].value == 3
    assert [culprit.node_rank for culprit in finding.culprits] == [0, 1, 3]
