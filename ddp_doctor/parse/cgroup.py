"""The CPU and memory limits of the control groups a process is in, of version 1 or 2.

/proc/self/cgroup, version 2, then version 1 in a Docker container without cgroup namespace::

    0::/user.slice/user-1000.slice/session-3.scope

    4:memory:/docker/0c6a4f
    1:cpu,cpuacct:/docker/0c6a4f

/proc/self/mountinfo: root and mount point are fields 4 and 5, the type follows the dash::

    35 25 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
    34 31 0:31 /docker/0c6a4f /sys/fs/cgroup/memory ro,nosuid - cgroup cgroup rw,memory

cpu.max is "200000 100000" (2 CPUs) or "max 100000"; memory.max a number or "max". Version 1 has cpu.cfs_quota_us (-1:
none), cpu.cfs_period_us and memory.limit_in_bytes (9223372036854771712: none). The limits of all parents also apply, so
every directory up to the mount point is read.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: Returns the text of a file, or None if it cannot be read.
Reader = Callable[[str], str | None]

_UNLIMITED_BYTES = 1 << 60  # version 1 writes the largest page-aligned number of 63 bits


@dataclass(frozen=True)
class Limits:
    """The limits of the process. None: no limit."""

    cpu_quota_cpus: float | None = None
    memory_limit_bytes: int | None = None
    memory_free_bytes: int | None = None  # under that limit, with what the kernel can reclaim of files


@dataclass(frozen=True)
class _Mount:
    root: str
    point: str
    version: int
    controllers: tuple[str, ...]


def limits(read: Reader) -> Limits:
    """Return the tightest limits over all levels; ``read`` returns the text of a file by its path."""
    groups, mounts = _places(read)
    version, folders = _folders(groups, mounts, "cpu")
    quotas = [_cpu_quota(read, folder, version) for folder in folders]
    version, folders = _folders(groups, mounts, "memory")
    memory = [pair for folder in folders if (pair := _memory(read, folder, version)) is not None]
    return Limits(
        cpu_quota_cpus=min((quota for quota in quotas if quota is not None), default=None),
        memory_limit_bytes=min((limit for limit, _ in memory), default=None),
        memory_free_bytes=min((free for _, free in memory if free is not None), default=None),
    )


def throttled_s(read: Reader) -> float | None:
    """Return how long a quota has stopped the group: the maximum of all levels, or None if no level counts it.

    In cpu.stat: "throttled_usec 1200" of version 2, "throttled_time 1200000" (ns) of version 1.
    """
    texts = [read(f"{folder}/cpu.stat") or "" for folder in _folders(*_places(read), "cpu")[1]]
    found = (re.search(r"^throttled_(usec|time) (\d{1,18})$", text, re.MULTILINE | re.ASCII) for text in texts)
    return max((int(match[2]) / (1e6 if match[1] == "usec" else 1e9) for match in found if match), default=None)


def _places(read: Reader) -> tuple[dict[str, str], list[_Mount]]:
    """Return the process's paths by controller, which is "" for version 2, and the mounts of control groups."""
    groups: dict[str, str] = {}
    for line in (read("/proc/self/cgroup") or "").splitlines():
        controllers, colon, path = line.partition(":")[2].partition(":")
        if colon and path.startswith("/"):
            groups.update(dict.fromkeys(controllers.split(","), path))
    return groups, list(_mounts(read("/proc/self/mountinfo") or ""))


def _mounts(text: str) -> Iterator[_Mount]:
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        place, kind = before.split(" "), after.split(" ")
        if not dash or len(place) < 6 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        controllers = ("",) if version == 2 else tuple(kind[-1].split(","))
        yield _Mount(_unescaped(place[3]), _unescaped(place[4]), version, controllers)


def _unescaped(path: str) -> str:
    """Decode the octal escapes of blanks and other characters in a path of mountinfo."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _folders(groups: dict[str, str], mounts: list[_Mount], controller: str) -> tuple[int, list[str]]:
    """Return the version of the process's control group, and its directory and parents up to the mount point.

    A controller is mounted in one version only. In a hybrid system that is version 1.
    """
    for name in (controller, ""):
        matching = [mount for mount in mounts if name in mount.controllers]
        if name in groups and matching:
            mount = max(matching, key=lambda mount: (_is_below(groups[name], mount.root), len(mount.root)))
            return mount.version, list(_upwards(mount, groups[name]))
    return 0, []


def _is_below(path: str, root: str) -> bool:
    return root in ("/", path) or path.startswith(root + "/")


def _upwards(mount: _Mount, path: str) -> Iterator[str]:
    """Yield the directories from the group's up to the mount point, or only that for a group outside of it."""
    inside = path[len(mount.root.rstrip("/")) :] if _is_below(path, mount.root) else ""
    parts = [part for part in inside.split("/") if part]
    if ".." in parts:  # the process is outside of its cgroup namespace's root
        parts = []
    for depth in range(len(parts), -1, -1):
        yield posixpath.join(mount.point, *parts[:depth])


def _cpu_quota(read: Reader, folder: str, version: int) -> float | None:
    if version == 2:
        quota, _, period = (read(f"{folder}/cpu.max") or "").strip().partition(" ")
    else:
        quota = read(f"{folder}/cpu.cfs_quota_us") or ""
        period = read(f"{folder}/cpu.cfs_period_us") or ""
    allowed_us, period_us = _number(quota), _number(period)
    return allowed_us / period_us if allowed_us and period_us else None


def _memory(read: Reader, folder: str, version: int) -> tuple[int, int | None] | None:
    """Return the limit of one level and the free memory under it, or None without a limit."""
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, used = (_number(read(f"{folder}/{name}") or "") for name in names)
    if limit is None or limit >= _UNLIMITED_BYTES:
        return None
    if used is None:
        return limit, None
    # The kernel can reclaim files in the page cache that no process used lately.
    name = "inactive_file" if version == 2 else "total_inactive_file"
    stat = re.search(rf"^{name} (\d+)$", read(f"{folder}/memory.stat") or "", re.MULTILINE | re.ASCII)
    reclaimable = (_number(stat[1]) if stat else None) or 0
    return limit, max(limit - used + reclaimable, 0)


def _number(text: str) -> int | None:
    """Return a whole number that is not negative and fits in 64 bits, or None, as for "max" and -1."""
    return int(text) if re.fullmatch(r"\d{1,19}\s*", text, re.ASCII) else None
