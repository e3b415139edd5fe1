"""The cgroup's count of OOM kills: the only reliable sign that SIGKILL came from the kernel."""

from pathlib import Path


class OomCounter:
    """Counts OOM kills in this process's memory cgroup (v2 memory.events) and on the host."""

    def __init__(self) -> None:
        self._before = _count()

    def since_start(self) -> int:
        """OOM kills since this object was made; 0 where the kernel does not count them."""
        return max(_count() - self._before, 0)


def _count() -> int:
    return max(_field(_cgroup_events(), "oom_kill"), _field("/proc/vmstat", "oom_kill"))


def _cgroup_events() -> str:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    own = next((line.partition("::")[2] for line in lines if line.startswith("0::")), "")
    return f"/sys/fs/cgroup{own}/memory.events"


def _field(path: str, name: str) -> int:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)
