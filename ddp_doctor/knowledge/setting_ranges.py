"""Numbers that a setting takes, where another is cut, wraps or means something else, without a word.

Sources: NCCL user guide (values accepted), src/transport/net_ib/connect.cc (ibv_modify_qp takes 3 bits of a retry
count, 5 of a time-out, 4 of a service level, 8 of a traffic class), src/transport/net_socket.cc (MAX_THREADS 16),
src/graph/tuning.cc (getNthreads), torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp (ErrorHandlingMode).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_doctor.knowledge.setting_pairs import Env, number
from ddp_doctor.knowledge.versions import Version

#: Channels at most; from 2.25 on twice as many.
_MOST_CHANNELS, _MOST_CHANNELS_SINCE_225 = 32, 64


@dataclass(frozen=True)
class Range:
    """The numbers from ``least`` to ``most``; -1 and -2 mean NCCL's own choice."""

    least: int
    most: int
    beyond: str  # what another number does
    source: str = "NCCL user guide, environment variables"
    says: str = ""  # after the setting; the range where it is empty
    minor: bool = False  # NCCL makes the best of it


_WIDE = "The network card takes the lowest bits of it."
_CUT = "NCCL cuts it to what it has."
_RANGES: Mapping[str, Range] = {
    "NCCL_IB_TIMEOUT": Range(
        1,
        31,
        "It waits for ever for an answer: a dead peer then hangs the job.",
        "NCCL user guide, NCCL_IB_TIMEOUT",
    ),
    "NCCL_IB_RETRY_CNT": Range(0, 7, _WIDE),
    "NCCL_IB_SL": Range(0, 15, _WIDE),
    "NCCL_IB_TC": Range(0, 255, _WIDE),
    "NCCL_IB_FIFO_TC": Range(0, 255, _WIDE),
    "NCCL_IB_GID_INDEX": Range(0, 254, "No table has such an entry: connections fail."),
    "NCCL_IB_QPS_PER_CONNECTION": Range(1, 128, "NCCL has room for 128."),
    "NCCL_IB_ROCE_VERSION_NUM": Range(1, 2, "There are RoCE version 1 and 2."),
    "NCCL_IB_PCI_RELAXED_ORDERING": Range(0, 2, "0 is off, 1 is on, 2 is NCCL's own choice."),
    "NCCL_SOCKET_NTHREADS": Range(0, 16, _CUT, "NCCL src/transport/net_socket.cc, MAX_THREADS"),
    "NCCL_NTHREADS": Range(64, 512, _CUT, "NCCL src/graph/tuning.cc, getNthreads"),
    "NCCL_CROSS_NIC": Range(0, 2, "0 keeps to one rail, 1 crosses, 2 is NCCL's own choice."),
    "NCCL_NVLS_ENABLE": Range(0, 2, "0 is off, 1 is on, 2 is NCCL's own choice."),
    "NCCL_MNNVL_ENABLE": Range(0, 2, "0 is off, 1 is on, 2 is NCCL's own choice."),
    "NCCL_IGNORE_DISABLED_P2P": Range(
        0, 2, "0 asks the driver, 1 lets NCCL go on without P2P, 2 does not ask."
    ),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": Range(
        0, 3, "torch knows four ways.", "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, ErrorHandlingMode"
    ),
}
#: The least that any release takes by itself (2.3.5 to 2.12, src/transport/net_ib.cc); 0 stands in _RANGES.
_SHORTEST_IB_TIMEOUT = 14
_CHANNELS = ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS")


def out_of_range(name: str, env: Env, nccl: Version) -> Range | None:
    """The range of a variable whose number is outside of it; None where it is inside, or none is known."""
    value = number(env, name)
    known = _RANGES.get(name)
    if name in _CHANNELS:
        most = _MOST_CHANNELS if nccl and nccl < (2, 25) else _MOST_CHANNELS_SINCE_225
        known = Range(1, most, f"{_CUT} RCCL, of AMD's GPUs, has more.", minor=True)
    if name == "NCCL_IB_TIMEOUT" and value is not None and 0 < value < _SHORTEST_IB_TIMEOUT:
        return _short_timeout(value)
    if known is None or value is None or value in (-1, -2) or known.least <= value <= known.most:
        return None
    return known


def _short_timeout(exponent: int) -> Range:
    wait_ms = 4.096e-3 * 2**exponent
    return Range(
        _SHORTEST_IB_TIMEOUT,
        31,
        "Where the network is busy for longer, the connection is given up after a few tries, and the job ends"
        f" with completion error 12. No release of NCCL takes less than {_SHORTEST_IB_TIMEOUT} by itself.",
        "NCCL user guide, NCCL_IB_TIMEOUT",
        says=f"waits {wait_ms:.2g} ms for an answer",
    )
