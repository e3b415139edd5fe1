"""How long NCCL's RDMA waits for an acknowledgement before it gives up with status 12.

4.096 µs x 2^NCCL_IB_TIMEOUT for each try, and NCCL_IB_RETRY_CNT tries (libibverbs, ibv_modify_qp(3): timeout and
retry_cnt, of 5 and 3 bits; NCCL src/transport/net_ib: 18 and 7, since 2.23 20 and 7).
"""

from collections.abc import Mapping

TIMEOUT, RETRIES = "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"
DEFAULT_TIMEOUT, DEFAULT_RETRIES = 20, 7
#: Four times the default; two minutes in all, which outlasts a fabric that learns new routes.
LONGER_TIMEOUT = 22
_TICK_S = 4.096e-6


def wait_s(timeout: int, retries: int) -> float:
    """Seconds until a send that nobody acknowledges fails."""
    return _TICK_S * float(2**timeout) * retries


def lowered(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that give up sooner than NCCL would by itself."""
    limits = {TIMEOUT: DEFAULT_TIMEOUT, RETRIES: DEFAULT_RETRIES}
    found = {}
    for name, default in limits.items():
        value = settings.get(name, "")
        if value.isdecimal() and len(value) < 4 and int(value) < default:
            found[name] = value
    return found
