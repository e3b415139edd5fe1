from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.parse.cgroup import Limits, limits

V2_MOUNT = "35 25 0:30 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
GIB = 1024**3

HOST_V2 = {
    "/proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n",
    "/proc/self/mountinfo": "22 27 0:21 / /proc rw - proc proc rw\n" + V2_MOUNT,
    "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/cpu.max": "max 100000\n",
    "/sys/fs/cgroup/user.slice/user-1000.slice/cpu.max": "400000 100000\n",
    "/sys/fs/cgroup/user.slice/cpu.max": "800000 100000\n",
    "/sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/memory.max": "max\n",
    "/sys/fs/cgroup/user.slice/user-1000.slice/memory.max": f"{4 * GIB}\n",
    "/sys/fs/cgroup/user.slice/user-1000.slice/memory.current": f"{3 * GIB}\n",
    "/sys/fs/cgroup/user.slice/user-1000.slice/memory.stat": f"anon 1\nfile 2\ninactive_file {GIB}\nactive_file 9\n",
}


def test_a_parents_limit_binds_in_version_2():
    assert limits(HOST_V2.get) == Limits(4.0, 4 * GIB, 2 * GIB)


DOCKER_V1 = {
    "/proc/self/cgroup": "4:memory:/docker/0c6a4f\n1:cpu,cpuacct:/docker/0c6a4f\n0::/\n",
    "/proc/self/mountinfo": (
        "32 31 0:29 /docker/0c6a4f /sys/fs/cgroup/cpu,cpuacct ro,nosuid master:9 - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 /docker/0c6a4f /sys/fs/cgroup/memory ro,nosuid master:12 - cgroup cgroup rw,memory\n"
    ),
    "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
    "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{GIB}\n",
    "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
    "/sys/fs/cgroup/memory/memory.stat": "inactive_file 7\ntotal_inactive_file 9\n",
}


def test_a_docker_container_of_version_1_without_cgroup_namespace():
    assert limits(DOCKER_V1.get) == Limits(2.0, GIB, 0)


def test_a_slurm_job_step_of_version_2_on_a_mount_point_with_a_blank():
    files = {
        "/proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
        "/proc/self/mountinfo": "35 25 0:30 / /sys/fs\\040x rw - cgroup2 none rw\n",
        "/sys/fs x/system.slice/slurmstepd.scope/job_7/memory.max": "1000\n",
    }
    assert limits(files.get) == Limits(memory_limit_bytes=1000)


def test_machine_without_control_groups_has_no_limits():
    assert limits(lambda path: None) == Limits()


@given(quota=st.integers(1, 10**9), period=st.integers(1, 10**6))
def test_a_quota_is_cpus(quota, period):
    files = {
        "/proc/self/cgroup": "0::/\n",
        "/proc/self/mountinfo": V2_MOUNT,
        "/sys/fs/cgroup/cpu.max": f"{quota} {period}\n",
    }
    assert limits(files.get).cpu_quota_cpus == quota / period


@given(st.dictionaries(st.sampled_from(sorted({*HOST_V2, *DOCKER_V1})), st.text(), max_size=8))
def test_hostile_files_give_no_errors_and_no_negative_limits(garbage):
    for files in (HOST_V2, DOCKER_V1):
        found = limits({**files, **garbage}.get)
        assert found.cpu_quota_cpus is None or found.cpu_quota_cpus > 0
        assert found.memory_free_bytes is None or found.memory_free_bytes >= 0
