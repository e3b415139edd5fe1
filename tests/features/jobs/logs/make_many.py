"""Dumps of gloo ranks with 200 collectives in 4 groups: ``python -m tests.features.jobs.logs.make_many FOLDER WHAT``.

WHAT is "through", "skipped" or "size". In "skipped", rank 2 omits an all-reduce of the default group, and the others
wait for it in the last one. In "size", rank 2 passes more numbers than the others to one additional all-reduce. Each
rank writes the pickle nccl_trace_rank_N and stops. Only this process imports torch, and each rank is a fork of it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.features.jobs.logs.make_dumps import wait_until_at_rest
from tests.waiting import wait_until

RANKS, ROUNDS, CULPRIT = 4, 50, 2


def be_rank(folder: Path, what: str, rank: int) -> None:
    """Run one rank and write its dump."""
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d

    c10d, stores = _distributed_c10d, dist
    torch.set_num_threads(1)
    store = stores.FileStore(str(folder / ".store"), RANKS)  # type: ignore[attr-defined]  # exported implicitly
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    members = ([0, 1], [2, 3], [0, 2])
    groups: list[Any] = [dist.new_group(of) for of in members]
    last: Any = None
    for number in range(ROUNDS):
        for of, group in zip(members, groups, strict=True):
            tensor = torch.ones(8 * (number % 5 + 1))
            if rank in of and number % 3 == 0:
                dist.broadcast(tensor, of[0], group=group)
            elif rank in of and number % 3 == 1:
                dist.all_gather([tensor.clone() for _ in of], tensor, group=group)
            elif rank in of:
                dist.all_reduce(tensor, group=group)
        if (what, rank, number) == ("skipped", CULPRIT, 40):
            continue
        if last is not None:
            last.wait()
        last = dist.all_reduce(torch.ones(64), async_op=True)
    if what == "size":
        last.wait()
        if rank == CULPRIT:
            wait_until(lambda: len(list(folder.glob("nccl_trace_*"))) == RANKS - 1, "the other ranks write dumps")
        last = dist.all_reduce(torch.ones(65 if rank == CULPRIT else 64), async_op=True)
    if what != "size" or rank != CULPRIT:
        wait_until_at_rest(c10d._dump_fr_trace_json)  # type: ignore[attr-defined]
    dump: bytes = c10d._dump_fr_trace()  # type: ignore[attr-defined]
    (folder / f".{rank}").write_bytes(dump)
    (folder / f".{rank}").rename(folder / f"nccl_trace_rank_{rank}")
    os.kill(os.getpid(), signal.SIGSTOP)  # gloo would end a rank that receives more than it asked for


def main(folder: Path, what: str) -> None:
    import torch.distributed  # noqa: F401 - for the ranks

    for rank in range(RANKS):
        if os.fork() == 0:
            be_rank(folder, what, rank)
    os.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
