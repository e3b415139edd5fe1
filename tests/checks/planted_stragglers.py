"""Ranks that are slowed for a check: by a CPU quota, a neighbor, a process in bursts, or slow reads. Needs root."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddp_doctor.checks.collectives.stragglers import CHECK, probe
from ddp_doctor.model.fact import Reading, read
from tests.rank_harness import HarnessContext

CPU_GROUPS = Path("/sys/fs/cgroup/cpu") if Path("/sys/fs/cgroup/cpu").is_dir() else Path("/sys/fs/cgroup")
#: Delays read, pread and preadv of regular files by 5 ms each.
SLOW_READS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
static void delay(int fd) {
    struct stat it;
    if (!fstat(fd, &it) && S_ISREG(it.st_mode) && it.st_size > 20000) usleep(5000);
}
ssize_t read(int fd, void *to, size_t size) {
    ssize_t (*next)(int, void *, size_t) = dlsym(RTLD_NEXT, "read");
    delay(fd);
    return next(fd, to, size);
}
ssize_t pread64(int fd, void *to, size_t size, off64_t at) {
    ssize_t (*next)(int, void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pread64");
    delay(fd);
    return next(fd, to, size, at);
}
ssize_t preadv64v2(int fd, const struct iovec *to, int count, off64_t at, int flags) {
    ssize_t (*next)(int, const struct iovec *, int, off64_t, int) = dlsym(RTLD_NEXT, "preadv64v2");
    delay(fd);
    return next(fd, to, count, at, flags);
}
"""
SPIN = "while True: pass"
BURSTS = """
import os, signal, sys, time
while True:
    time.sleep(0.007)
    os.kill(int(sys.argv[1]), signal.SIGSTOP)
    time.sleep(0.005)
    os.kill(int(sys.argv[1]), signal.SIGCONT)
"""


def measured(ctx: HarnessContext, odd: int | None, plant: Callable[[], Any], data: str = "") -> Reading:
    """Return the reading of one rank; rank ``odd`` runs with the injected fault."""
    ctx.deadline += 600
    ctx.options = ctx.options.model_copy(update={"data": data})
    with plant() if ctx.rank == odd else contextlib.nullcontext():
        if data and ctx.rank == odd and plant is slow_reads:
            ctx.env = dict(os.environ)
        return read(CHECK.id, probe, ctx, rank=ctx.rank)


def calm(ctx: HarnessContext, odd: int | None, plant: Callable[[], Any], data: str = "") -> Reading:
    """The same in a control group that goes before all others: whatever else runs on the machine matters little."""
    own_group().mkdir()
    try:
        _write("cpu.shares", "262144")
        _write("cpu.weight", "10000")
        _write("cgroup.procs", str(os.getpid()))
        return measured(ctx, odd, plant, data)
    finally:
        (CPU_GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        own_group().rmdir()


def own_group() -> Path:
    return CPU_GROUPS / f"ddp-doctor-test-{os.getpid()}"


def _write(name: str, text: str) -> None:
    """Version 1 and 2 have different files."""
    if (own_group() / name).exists():
        (own_group() / name).write_text(text)


@contextmanager
def quota() -> Iterator[None]:
    _write("cpu.cfs_quota_us", "50000")
    _write("cpu.max", "50000 100000")
    yield


@contextmanager
def neighbor() -> Iterator[None]:
    """Limit this process to one CPU with a spinning process of its group; ranks of other groups have priority."""
    _write("cpu.shares", "16384")
    _write("cpu.weight", "625")
    cpus = os.sched_getaffinity(0)
    cpu = {max(cpus)}
    with _beside((sys.executable, "-c", SPIN)) as spinner:
        os.sched_setaffinity(spinner.pid, cpu)
        os.sched_setaffinity(0, cpu)
        yield
        os.sched_setaffinity(0, cpus)


@contextmanager
def stopped_in_bursts() -> Iterator[None]:
    with _beside((sys.executable, "-c", BURSTS, str(os.getpid()))):
        yield


@contextmanager
def slow_reads() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "slow.c", Path(folder) / "slow.so"
        source.write_text(SLOW_READS)
        subprocess.run(("cc", "-shared", "-fPIC", "-o", library, source, "-ldl"), check=True)
        os.environ["LD_PRELOAD"] = str(library)
        yield
        del os.environ["LD_PRELOAD"]


@contextmanager
def _beside(argv: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(argv)
    try:
        yield process
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
