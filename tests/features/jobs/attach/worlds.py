"""Small gloo jobs that hang in different ways, or do not: ``python -m tests.features.jobs.attach.worlds FOLDER WAY...``

torch is imported once. Each job is a process that forks three ranks and does not wait for them.
"""

import os
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.features.jobs.attach import RANKS
from tests.waiting import wait_until


class Data(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, *, stuck: bool) -> None:
        self.stuck = stuck

    def __len__(self) -> int:
        return 10

    def __getitem__(self, at: int) -> torch.Tensor:
        if self.stuck and at == 9:
            wait_for_ever()
        return torch.zeros(1)


def wait_for_ever() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def train(way: str, rank: int, folder: Path) -> None:
    number = torch.zeros(1)
    for _ in range(3):
        dist.all_reduce(number)
    if way == "loader":
        for batch in torch.utils.data.DataLoader(Data(stuck=rank == 2), num_workers=1):
            dist.all_reduce(batch)
    if way == "other-collective" and rank == 1:
        dist.all_gather([torch.zeros(1) for _ in range(RANKS)], number)
    if way == "lock" and rank == 1:
        wait_for_ever()
    if way == "stopped" and rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    if way == "killed":
        (folder / f"met-{rank}").touch()
        if rank == 2:
            wait_until(lambda: len([*folder.glob("met-*")]) == RANKS)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.new_group([0, 1, 2])
    while way == "moving":
        dist.all_reduce(number)
        threading.Event().wait(0.01)  # leaves CPU time to the other jobs
    dist.all_reduce(number)


def job(way: str, folder: Path) -> None:
    for rank in range(RANKS):
        if os.fork() == 0:
            file = folder / f"{way}.store"
            dist.init_process_group(
                "gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS, timeout=timedelta(minutes=10)
            )
            (folder / f"{way}.{rank}").touch()
            train(way, rank, folder)
    signal.pause()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        if os.fork() == 0:
            job(name, Path(sys.argv[1]))
    signal.pause()
