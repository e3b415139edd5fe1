"""Dumps of gloo ranks that really hang: ``python -m tests.features.jobs.logs.make_dumps FOLDER [--ranks 2,4,8]``.

Each situation gets FOLDER/SITUATION-RANKS with the pickle (nccl_trace_rank_N) and the JSON (rankN.json) of each rank.
All of them run at once. Only this process imports torch. Each rank is a fork of it that dumps its own recorder from a
thread and is killed afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tests.waiting import LIMIT_S, wait_forever, wait_until

#: Number of samples without a new entry until a recorder counts as idle. A busy machine delays samples and ranks alike.
_LOOKS = 100


class Situation(NamedTuple):
    """The calls of rank ``rank`` of ``size`` after two ordinary collectives. ``sub``: the group of the first ranks."""

    do: Callable[[int, int, Any], None]
    cause: str | None  # the expected cause with more than two ranks; None for a healthy job
    culprits: Callable[[int], set[int]]  # by number of ranks; often empty for two ranks


def _all_reduce(group: Any = None) -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(4), group=group)


def _broadcast() -> None:
    import torch
    import torch.distributed as dist

    dist.broadcast(torch.ones(4), src=0)


def _barrier() -> None:
    import torch.distributed as dist

    dist.barrier()


def _missing(rank: int, size: int, _sub: Any) -> None:
    if rank != size - 1:
        _all_reduce()


def _other_operation(rank: int, size: int, _sub: Any) -> None:
    _broadcast() if rank == size - 1 else _all_reduce()


def _one_more(rank: int, _size: int, _sub: Any) -> None:
    if rank == 0:
        _broadcast()


def _in_a_sub_group(rank: int, size: int, sub: Any) -> None:
    members = members_of_sub(size)
    if rank != members[-1]:
        _all_reduce(sub if rank in members else None)


def _crossed_groups(rank: int, size: int, _sub: Any) -> None:
    import torch.distributed as dist

    other = dist.new_group(list(range(size)))
    _all_reduce(other)
    _all_reduce(other if rank == size - 1 else None)


def _skipped_backward(rank: int, size: int, _sub: Any) -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    for step in range(3):
        loss = model(torch.ones(1, 4)).sum()
        if (rank, step) != (size - 1, 2):
            loss.backward()
    _barrier()


def _barrier_alone(rank: int, _size: int, _sub: Any) -> None:
    if rank == 0:
        _barrier()


def _stopped(rank: int, size: int, _sub: Any) -> None:
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    _all_reduce()


def _at_rest(_rank: int, _size: int, _sub: Any) -> None:
    pass


def _the_last(size: int) -> set[int]:
    return {size - 1}


def _the_last_of_more_than_two(size: int) -> set[int]:
    return {size - 1} if size > 2 else set()


def _the_first_of_more_than_two(size: int) -> set[int]:
    return {0} if size > 2 else set()


def members_of_sub(size: int) -> list[int]:
    """Return the ranks of the sub-group: half of the ranks, and at least two."""
    return list(range(max(2, size // 2)))


SITUATIONS = {
    "missing": Situation(_missing, "stuck-outside-collective", _the_last),
    "other-operation": Situation(_other_operation, "collective-mismatch", _the_last_of_more_than_two),
    "one-more": Situation(_one_more, "rank0-only-collective", _the_first_of_more_than_two),
    "sub-group": Situation(_in_a_sub_group, "stuck-outside-collective", lambda size: {members_of_sub(size)[-1]}),
    "crossed-groups": Situation(_crossed_groups, "cross-group-deadlock", _the_last_of_more_than_two),
    "skipped-backward": Situation(_skipped_backward, "collective-mismatch", _the_last_of_more_than_two),
    "barrier-alone": Situation(_barrier_alone, "rank0-only-collective", _the_first_of_more_than_two),
    "stopped": Situation(_stopped, "rank-unreachable", _the_last),
    "at-rest": Situation(_at_rest, None, lambda _size: set()),
}


def make(folder: Path, situations: Sequence[str], sizes: Sequence[int]) -> None:
    """Write the dumps of these situations. Raises AssertionError if a rank that can answer wrote none."""
    import torch
    import torch._dynamo.utils
    import torch.nn.parallel

    torch.set_num_threads(1)
    ranks: list[int] = []
    awaited: list[Path] = []
    try:
        for name in situations:
            for size in sizes:
                here = folder / f"{name}-{size}"
                here.mkdir(parents=True)
                for rank in range(size):
                    pid = os.fork()
                    if pid == 0:
                        _be_rank(here, SITUATIONS[name], rank, size)
                    ranks.append(pid)
                    if name != "stopped" or rank != size - 1:
                        awaited.append(here / f"rank{rank}.json")
        wait_until(lambda: all(path.exists() for path in awaited), "all ranks that can answer write a dump")
    finally:
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for path in folder.glob("*/.*"):
        path.unlink()


def _be_rank(folder: Path, situation: Situation, rank: int, size: int) -> NoReturn:
    """Run as this rank until it is killed. Never returns to its parent's code."""
    import torch.distributed as dist

    signal.alarm(round(2 * LIMIT_S))  # ends it if its parent was killed
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        stores: Any = dist
        store = stores.FileStore(str(folder / ".store"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        sub = dist.new_group(members_of_sub(size))
        for _ in range(2):
            _all_reduce()
        if rank in members_of_sub(size):
            _all_reduce(sub)
        (folder / f".here{rank}").touch()
        threading.Thread(target=_dump_when_quiet, args=(folder, rank, size), daemon=True).start()
        with contextlib.suppress(Exception):
            situation.do(rank, size, sub)
        wait_forever()
    finally:
        os._exit(1)


def _dump_when_quiet(folder: Path, rank: int, size: int) -> None:
    from torch._C import _distributed_c10d

    c10d: Any = _distributed_c10d
    wait_until(lambda: all((folder / f".here{other}").exists() for other in range(size)), "all ranks have begun")
    wait_until_at_rest(c10d._dump_fr_trace_json)
    (folder / f"nccl_trace_rank_{rank}").write_bytes(c10d._dump_fr_trace())
    (folder / f".rank{rank}").write_bytes(c10d._dump_fr_trace_json())
    (folder / f".rank{rank}").rename(folder / f"rank{rank}.json")


def wait_until_at_rest(dump: Callable[[], bytes]) -> None:
    """Wait until the recorder has had no new entry for many samples."""
    looks: list[bytes] = []

    def is_at_rest() -> bool:
        looks.append(dump())
        del looks[:-_LOOKS]
        return len(looks) == _LOOKS and len(set(looks)) == 1

    wait_until(is_at_rest, "the recorder is at rest")


def kept(folder: Path, size: int) -> dict[str, dict[str, object]]:
    """Return the JSON of each rank by situation, as in tests/features/jobs/logs/dumps.json."""
    return {
        name: {
            str(rank): json.loads(path.read_text())
            for rank in range(size)
            if (path := folder / f"{name}-{size}" / f"rank{rank}.json").exists()
        }
        for name in SITUATIONS
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.features.jobs.logs.make_dumps", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--keep", type=Path, help="write the JSON of four ranks to this file too")
    parser.add_argument("situations", nargs="*", default=list(SITUATIONS))
    chosen = parser.parse_args()
    make(chosen.folder, chosen.situations, [int(size) for size in chosen.ranks.split(",")])
    if chosen.keep:
        rows = (
            f"{json.dumps(name)}: {json.dumps(of, separators=(',', ':'))}"
            for name, of in kept(chosen.folder, 4).items()
        )
        chosen.keep.write_text("{\n" + ",\n".join(rows) + "\n}\n")
