import pytest

from ddp_doctor.probing.host_limits import (
    load_1min,
    memlock_is_ignored,
    memory_bytes,
    omp_threads,
    online_cpus,
    rdma_unused_by,
    several_tasks,
)
from ddp_doctor.wording.findings import in_units

HOST_MAP = "         0          0 4294967295\n"


def test_values_of_meminfo_loadavg_and_stat():
    meminfo = "MemTotal:       24684084 kB\nMemFree:        22852092 kB\nMemAvailable:   23492432 kB\n"
    assert memory_bytes(meminfo, "MemAvailable") == 23492432 * 1024
    assert memory_bytes(meminfo, "SwapFree") is None
    assert load_1min("3.25 1.11 0.99 2/138 16370\n") == 3.25
    assert online_cpus("cpu  1 2\ncpu0 1 2\ncpu11 1 2\nintr 1\n") == 2
    assert online_cpus("") is None


@pytest.mark.parametrize(
    ("capabilities", "uid_map", "ignored"),
    [
        ("000001ffffffffff", HOST_MAP, True),
        ("00000000a80425fb", HOST_MAP, False),  # Docker's default set
        ("0000000000000000", HOST_MAP, False),
        ("000001ffffffffff", "         0       1000          1\n", False),  # a rootless container
        ("000001ffffffffff", "", True),
    ],
)
def test_locked_memory_is_unlimited_for_root_of_the_host_only(capabilities, uid_map, ignored):
    status = f"Name:\tx\nCapEff:\t{capabilities}\nCapBnd:\t0\n"
    assert memlock_is_ignored({"/proc/self/status": status, "/proc/self/uid_map": uid_map}.get) is ignored


@pytest.mark.parametrize(
    ("value", "threads"), [("4", 4), (" 8 ", 8), ("4,2", 4), ("0", None), ("", None), ("all", None), ("-1", None)]
)
def test_openmp_threads(value, threads):
    assert omp_threads(value) == threads


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        ({}, None),
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1"),
        ({"NCCL_IB_DISABLE": "0"}, None),
        ({"NCCL_IB_DISABLE": "true"}, None),
        ({"NCCL_NET": "Socket"}, "NCCL_NET=Socket"),
        ({"NCCL_NET": "IB"}, None),
    ],
)
def test_settings_that_keep_nccl_from_rdma(env, reason):
    assert rdma_unused_by(env) == reason


@pytest.mark.parametrize(
    ("env", "several"),
    [
        ({}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4"}, True),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, True),
        ({"MPI_LOCALNRANKS": "many"}, False),
    ],
)
def test_launchers_that_start_a_task_for_each_rank(env, several):
    assert several_tasks(env) is several


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (512, "512 bytes"), (65536, "64 KiB"), (9637888, "9.2 MiB"), (1024**3, "1 GiB")]
)
def test_sizes_for_people(size, text):
    assert in_units(size) == text
