"""The output of nvidia-smi, for comparison with ddp-doctor's own facts."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from tests.waiting import LIMIT_S, wait_until

MIB = 2**20


def query(*fields: str) -> list[dict[str, str]]:
    argv = ("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    lines = subprocess.check_output(argv, text=True, timeout=LIMIT_S).splitlines()
    return [dict(zip(fields, [cell.strip() for cell in line.split(",")], strict=True)) for line in lines]


def number(cell: str) -> float | None:
    """Return a number, or None for "[N/A]" and similar cells."""
    try:
        return float(cell)
    except ValueError:
        return None


def used_mib(gpu: int = 0) -> int:
    return int(query("memory.used")[gpu]["memory.used"])


def wait_until_at_most(limit_mib: float) -> None:
    """Wait until GPU 0 has at most this memory in use; drivers free it after the process has ended."""
    wait_until(lambda: used_mib() <= limit_mib, f"at most {limit_mib:g} MiB in use")


@contextmanager
def peak_used_mib() -> Iterator[list[int]]:
    """Record the memory in use on GPU 0 during the block, as often as nvidia-smi answers."""
    seen, ended = [used_mib()], Event()

    def watch() -> None:
        while not ended.wait(0.05):
            seen.append(used_mib())

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join(LIMIT_S)
