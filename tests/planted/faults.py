"""Faults injected into the real NCCL: the change to two ranks, NCCL's message, and how each rank exits.

A row was observed with NCCL 2.21.5, 2.27.5 and 2.32.3; ``python -m tests.planted.table`` repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.planted import rank

#: How a rank exits: with the code of NCCL's result (5: invalid usage), by a signal, never, or well.
WELL, HANGS, SIGFPE, SIGSEGV, NO_ID = "well", "hangs", "SIGFPE", "SIGSEGV", "got no id"
_NAMES = {0: WELL, None: HANGS, -8: SIGFPE, -11: SIGSEGV, rank.NO_ID: NO_ID}
UNHANDLED, SYSTEM, INTERNAL, ARGUMENT, USAGE, REMOTE = "1", "2", "3", "4", "5", "6"


def end(code: int | None) -> str:
    """The exit code of tests/planted/rank.py in these words."""
    return _NAMES.get(code) or (str(code - 10) if code and code > 10 else str(code))


@dataclass(frozen=True)
class Fault:
    """A fault: ``how`` are arguments of ``Machines.run``; ``says`` and ``ends`` apply to all releases except ``of``.

    ``says`` is a pattern of a line, "" if NCCL logs no warning. ``ends`` are patterns for rank 0 and rank 1: if two
    fail because of each other, the first to notice is random. ``of`` has (says, ends) by the start of a release.
    """

    name: str
    how: Mapping[str, Any]
    says: str
    ends: tuple[str, str]
    of: Mapping[str, tuple[str, tuple[str, str]]] = field(default_factory=dict)
    hosts: int = 1
    other: str = ""  # the release that rank 1 loads

    def seen_by(self, release: str) -> tuple[str, tuple[str, str]]:
        return next((row for start, row in self.of.items() if release.startswith(start)), (self.says, self.ends))


def _everyone(**env: str) -> dict[str, Any]:
    return {"env": env}


def _second(**env: str) -> dict[str, Any]:
    return {"of": {1: env}}


_SILENT = ("", (WELL, WELL))
_BOTH_REFUSE = (USAGE, USAGE)

FAULTS = (
    Fault("a rank is missing", {"missing": (1,)}, "", (HANGS, WELL)),
    Fault(
        "another world size on one rank",
        {"told": {1: {"world": 3}}},
        r"Bootstrap Root : mismatch in info from procs, nranks (2 vs 3|3 vs 2)",
        (HANGS, HANGS),
        {"2.21": (r"mismatch in rank count from procs (2 : 3|3 : 2)", (HANGS, HANGS))},
    ),
    Fault("a rank beyond the world", {"told": {1: {"rank": 2}}}, r"Invalid rank requested : 2/2", (HANGS, ARGUMENT)),
    Fault(
        "two ranks on one GPU",
        {"devices": (0, 0)},
        r"Duplicate GPU detected : rank \d and rank \d both on CUDA device 1b000",
        _BOTH_REFUSE,
        {"2.32": (r"Multiple Ranks are using the same GPU/Partition", _BOTH_REFUSE)},
    ),
    Fault(
        "one rank sees no GPU",
        _second(CUDA_VISIBLE_DEVICES=""),
        r"Cuda failure 'no CUDA-capable device is detected'",
        (HANGS, UNHANDLED),
    ),
    Fault(
        "NCCL_SOCKET_IFNAME names no interface",
        _everyone(NCCL_SOCKET_IFNAME="nosuch0"),
        r"Bootstrap : no socket interface found",
        (USAGE, NO_ID),
        {"2.21": (r"Bootstrap : no socket interface found", (INTERNAL, NO_ID))},
    ),
    Fault(
        "NCCL_ALGO is no algorithm",
        _everyone(NCCL_ALGO="garbage"),
        r'Unrecognized element token "garbage" when parsing "garbage"',
        _BOTH_REFUSE,
        {"2.21": _SILENT},
    ),
    Fault(
        "NCCL_PROTO is no protocol",
        _everyone(NCCL_PROTO="LL256"),
        r'Unrecognized element token "LL256" when parsing "LL256"',
        _BOTH_REFUSE,
        {"2.21": _SILENT},
    ),
    Fault(
        "NCCL_NET names no network",
        _everyone(NCCL_NET="nosuch"),
        r"Failed to initialize any NET plugin",
        _BOTH_REFUSE,
        {"2.21": (r"Error: network nosuch not found", _BOTH_REFUSE)},
    ),
    Fault(
        "NCCL_NET=IB and NCCL_IB_HCA names no adapter",
        _everyone(NCCL_NET="IB", NCCL_IB_HCA="mlx5_99"),
        r"Failed to initialize any NET plugin",
        _BOTH_REFUSE,
        {"2.21": (r"Error: network IB not found", _BOTH_REFUSE)},
    ),
    Fault("NCCL_IB_HCA names no adapter", _everyone(NCCL_IB_HCA="mlx5_99"), r"NET/IB : No device found", (WELL, WELL)),
    Fault(
        "NCCL_NET_PLUGIN names no plug-in",
        _everyone(NCCL_NET_PLUGIN="nosuch"),
        r"Could not find: nosuch libnccl-net-nosuch.so",
        (WELL, WELL),
        {"2.21": (r"NET/Plugin", (WELL, WELL))},
    ),
    Fault(
        "NCCL_TOPO_FILE is not there",
        _everyone(NCCL_TOPO_FILE="/nonexistent/topo.xml"),
        r"Could not open XML topology file /nonexistent/topo.xml",
        (WELL, WELL),
    ),
    Fault(
        "NCCL_BUFFSIZE with a unit",
        {**_everyone(NCCL_BUFFSIZE="4MB"), "size": 4 << 20},
        r"NCCL_BUFFSIZE set by environment to 4\.",
        (SIGFPE, SIGFPE),
    ),
    Fault(
        "NCCL_MAX_NCHANNELS on one rank",
        _second(NCCL_MAX_NCHANNELS="1"),
        r"Message truncated : received \d+ bytes instead of \d+",
        (f"{HANGS}|{SYSTEM}|{INTERNAL}|{REMOTE}", INTERNAL),
    ),
    Fault(
        "NCCL_P2P_DISABLE on one rank",
        _second(NCCL_P2P_DISABLE="1"),
        r"Error while attaching to shared memory segment /dev/shm/nccl-\S* \(size \d+\)",
        (f"{INTERNAL}|{SIGSEGV}|{SYSTEM}|{HANGS}", SYSTEM),
    ),
    Fault(
        "NCCL_NET on one of two hosts",
        _second(NCCL_NET="Socket"),
        r"socketFinalizeAccept.*: wrong type \d != \d",
        (INTERNAL, INTERNAL),
        {"2.32": (r"Wrong socket type from \S+ \(peer \d != expected \d", (f"{REMOTE}|{HANGS}", f"{REMOTE}|{HANGS}"))},
        hosts=2,
    ),
    Fault(
        "no memory can be registered",
        _everyone(PLANTED_IB="memlock"),
        r"Call to ibv_reg_mr failed with error Cannot allocate memory",
        (f"{SYSTEM}|{REMOTE}", f"{SYSTEM}|{REMOTE}"),
        hosts=2,
    ),
    Fault(
        "queue pairs do not connect",
        _everyone(PLANTED_IB="modify"),
        r"Call to ibv_modify_qp failed with (22|error) Invalid argument",
        (f"{SYSTEM}|{REMOTE}", f"{SYSTEM}|{REMOTE}"),
        hosts=2,
    ),
    Fault(
        "sends fail after all retries",
        {**_everyone(PLANTED_IB="completion"), "size": 16 << 20},
        r"Got completion from peer \S+ with status=(IBV_WC_RETRY_EXC_ERR\()?12",
        (WELL, WELL),  # the error is asynchronous, and no rank waits for it here
        hosts=2,
    ),
    Fault(
        "another release on one rank",
        {},
        r"Bootstrap Root : mismatch in info from procs, nranks 2 vs 2|Message truncated : received"
        r"|Failed to malloc -?\d+ bytes",
        (HANGS, HANGS),
        other="2.21.5",
    ),
)
