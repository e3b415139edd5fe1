"""The measurements that can be compared between runs, and the limits for an outlier."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_doctor.knowledge.collectives import TABLE


@dataclass(frozen=True)
class Comparable:
    """A measurement: its name in a sentence, and how far a healthy value may be from the median."""

    words: str
    floor: float  # share of the median; a smaller difference is noise, whatever the other runs show
    less_is_better: bool = False
    most: float | None = None  # differences above this value carry no information


#: Maximum difference between healthy GPUs of one model: knowledge/gpu/gpu_speed.py, SLOWER_SHARE.
_OF_GPU = 0.10
#: For shared resources: networks and host memory (judgment).
_OF_NETWORK = 0.15

#: By the name in the report. Start-up times, jitter and latencies are omitted: they follow the load of the machine.
COMPARABLE = {
    "allreduce_busbw": Comparable("all-reduce", _OF_NETWORK),
    **{f"{name}_busbw": Comparable(row.words, _OF_NETWORK) for name, row in TABLE.items() if row.is_timed},
    "p2p_bandwidth": Comparable("point-to-point", _OF_NETWORK),
    # knowledge/network/path_quality.py, JUDGED_BYTES_PER_S: above, one stream measures the hosts
    "reach_throughput": Comparable("TCP throughput", _OF_NETWORK, most=625e6),
    "hbm_copy_bandwidth": Comparable("copy within a GPU", _OF_GPU),
    "matmul_rate": Comparable("matrix products", _OF_GPU),
    "pcie_h2d_bandwidth": Comparable("host-to-GPU copy", _OF_NETWORK),
    "pcie_d2h_bandwidth": Comparable("GPU-to-host copy", _OF_NETWORK),
    "step_compute_of_rank": Comparable("forward and backward pass", _OF_GPU, less_is_better=True),
}
#: The label of a node's best path to any peer.
BEST_PATH = ("path", "best")

#: 1.4826 x the median absolute deviation estimates the standard deviation of normally distributed values (Rousseeuw and
#: Croux, 1993). An outlier exceeds five of them and is worse than every healthy value: with ten runs the deviation
#: itself is only known to a quarter, and one run compares some fifty values (judgment).
SIGMA = 1.4826
DEVIATIONS = 5.0
#: Minimum number of healthy runs; the noise of fewer runs is unknown.
FEWEST_RUNS = 5
#: A part of a traced step has changed if it differs by more than this share of the step, and by more than this many
#: median absolute deviations between the steps of one trace.
CHANGED_SHARE, CHANGED_MADS = 0.03, 3.0
#: Minimum number of traced steps; the noise of fewer steps is unknown.
FEWEST_STEPS = 3


def in_words(name: str, labels: Mapping[str, str | int | float]) -> str:
    """Return a phrase such as ``all-reduce of 4 MiB``."""
    size = f" of {int(labels['bytes']) / 2**20:g} MiB" if "bytes" in labels else ""
    return f"{COMPARABLE[name].words}{size}"


def noise(name: str, median: float, mad: float) -> float:
    """Return the share of the median by which a healthy value may differ from it."""
    return max(COMPARABLE[name].floor, DEVIATIONS * SIGMA * mad / median)


def loss(name: str, value: float, median: float) -> float:
    """Return the share by which a value is slower than the median; negative if it is faster."""
    return 1 - (median / value if COMPARABLE[name].less_is_better else value / median)


def is_outlier(name: str, value: float, median: float, mad: float, worst: float | None = None) -> bool:
    """Return True if a value is slower than noise explains and, if known, than the worst healthy value."""
    lost = loss(name, value, median)
    return lost > noise(name, median, mad) and (worst is None or lost > loss(name, worst, median))
