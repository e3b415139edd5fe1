"""Trials of fixes: which settings may be tried, how often, and which result counts as better.

A row of the table may have ``tried_with`` if a fresh process reads the variable when its ranks form a group. In
addition, no value may load code, write a file or reach a host other than those of the ranks, because the other nodes
apply the settings that the head of a run sends.
"""

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Literal

from ddp_doctor.settings.table import variables

Action = Literal["set", "unset"]
#: torchrun's --local-addr.
LOCAL_ADDR = "PET_LOCAL_ADDR"
#: Read by the launcher before ranks start: such a setting accompanies others, and trials do not need it.
OF_LAUNCHER = frozenset({LOCAL_ADDR})
_SAID = {"nccl": "NCCL", "gloo": "gloo"}
#: Read when a library is loaded, which is before a rank is forked.
_READ_EARLY = ("OMP_", "MKL_", "KMP_", "LD_", "MALLOC_", "GOMP_", "PYTORCH_CUDA_ALLOC_CONF")

#: Trials of each kind, alternately without and with the setting. nccl-tests users commonly take the median of five.
#: With three values each, two ranges are disjoint by chance in at most 1 of 20 cases.
ROUNDS = 5
LEAST_ROUNDS = 3
#: Time limit of the rounds, so one finding costs a run of two ranks at most 3 s.
ROUNDS_S = 2.2
#: If the setting helps in the median but the ranges overlap, as on a busy machine, up to this many further rounds
#: decide, while the run has time.
MOST_ROUNDS = 8
#: Overlapping ranges differ if the p-value is below this (Mann-Whitney, one-sided). The limit is stricter than 0.05,
#: because the rounds stop as soon as it is reached.
BY_CHANCE = 0.01
#: A trial for a fault of the CPU backend takes 0.1 to 0.3 s without the fault.
TRIAL_S = 6.0
#: … and one over NCCL, which makes communicators first, some seconds.
NCCL_TRIAL_S = 30.0
#: A trial without the setting hung if it took this many times as long as one with it, and at least HUNG_S.
HUNG_RATIO = 5.0
HUNG_S = 1.0
NCCL_HUNG_S = 8.0
#: … where speed matters, because a slow run must be distinguished from a hang.
SLOW_SHARE = 3.0
#: Bytes that the ranks of a tested group of nodes reduce, by backend. 4 MiB take about 0.6 s at 100 Mbit/s, so five
#: reductions are slow but do not hang. GPUs need more to fill their links.
GROUP_BYTES = {"gloo": 4 << 20, "nccl": 64 << 20}
#: The maximum number of bytes per rank in a trial; four times as many as any rule requests.
LARGEST_BYTES = 1 << 30
#: The minimum gain. Repeated medians of one path differ by up to 10% on busy machines.
GAIN = 1.2


@lru_cache(maxsize=1)
def names() -> frozenset[str]:
    """Return the variables that a trial may set."""
    return frozenset(name for name, variable in variables().items() if variable.tried_with)


def read_by(name: str, action: Action = "set") -> str | None:
    """Return the backend whose ranks read the variable in a trial, or None if it cannot be tested.

    NCCL reads all its variables when it creates its first communicator, and uses its default for unset ones.
    """
    variable = variables().get(name)
    if variable is None:
        return None
    return variable.tried_with or ("nccl" if action == "unset" and variable.owner == "nccl" else None)


def why_not(names: Iterable[str], backend: str, taken_away: Collection[str] = ()) -> str | None:
    """Return why these settings cannot be tested with ranks of this backend, or None if they can."""
    known = set(names)
    for name in sorted(known - OF_LAUNCHER or known):
        reader = read_by(name, "unset" if name in taken_away else "set")
        if name.startswith(_READ_EARLY):
            return f"{name} is read when a library loads, which takes a run of its own: set it and run again"
        if reader is None:
            return f"no trial of ranks reads {name}"
        if reader != backend:
            return f"{_SAID[reader]} reads {name}, and the ranks of this run use {_SAID.get(backend, backend)}"
    return None
