"""Large outputs of jobs, to measure how fast they are read: ``python -m tests.bench.job_logs KIND MEGABYTES FILE``."""

import random
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

RANKS = 1_024
_LOCAL = 8


def training() -> Iterator[str]:
    """Yield the output of all ranks through torchrun --tee: a line per step, and a warning after one line in 500."""
    dice = random.Random(1)
    for step in count():
        clock = f"2026-03-01 {step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02},417"
        for rank in range(RANKS):
            local, node = rank % _LOCAL, rank // _LOCAL
            loss, norm = dice.random(), dice.random()
            yield (
                f"[default{local}]:{clock} INFO trainer: node{node} rank {rank} step {step} loss {loss:.5f} lr 3.00e-04"
                f" grad_norm {norm:.4f} tokens per second {40_000 + int(9_000 * norm)}\n"
            )
            if dice.random() < 0.002:
                glog = f"[rank{rank}]:[W0301 {clock[11:19]}.417000000 ProcessGroupNCCL.cpp:1772]"
                yield f"[default{local}]:{glog} [Rank {rank}] Connection reset by peer\n"


def nccl_info() -> Iterator[str]:
    """NCCL_DEBUG=INFO: each process makes many communicators, with the lines of 32 channels each."""
    for communicator in count():
        for rank in range(RANKS):
            gpu, host = rank % _LOCAL, f"node{rank // _LOCAL}"
            said = f"{host}:{4_000 + rank}:{9_000 + rank} [{gpu}] NCCL INFO"
            device = f"cudaDev {gpu} nvmlDev {gpu} busId {gpu + 1}b000"
            name = f"comm 0x{communicator:x}{rank:x} rank {rank} nranks {RANKS} {device}"
            yield f"{said} ncclCommInitRank {name} commId 0x{communicator:x} - Init START\n"
            yield f"{said} NCCL_IB_HCA set by environment to mlx5\n{said} Using network IB\n"
            yield f"{said} NVLS comm 0x{communicator:x}{rank:x} headRank {gpu} nHeads 8 buffSize 4194304\n"
            following = (rank + 1) % RANKS
            via = "P2P/CUMEM" if following % _LOCAL else f"[send] via NET/IB/{gpu}/GDRDMA"
            via = via if via.startswith("[") else f"via {via}"
            for channel in range(32):
                ends = f"{rank}[{gpu}] -> {following}[{following % _LOCAL}]"
                yield f"{said} Channel {channel:02}/0 : {ends} {via}\n"
            yield f"{said} ncclCommInitRank {name} commId 0x{communicator:x} - Init COMPLETE\n"


def write(lines: Iterator[str], megabytes: int, path: Path) -> None:
    left = megabytes * 1_000_000
    with path.open("w", encoding="ascii") as file:
        while left > 0:
            left -= file.write("".join(line for line, _ in zip(lines, range(10_000), strict=False)))


if __name__ == "__main__":
    write({"training": training, "nccl-info": nccl_info}[sys.argv[1]](), int(sys.argv[2]), Path(sys.argv[3]))
