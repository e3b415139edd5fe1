"""What the ranks of one job must have in common: variables of NCCL, torch and gloo.

    NCCL_ALGO=Tree on one node, unset on the others     the ranks take different ways through one collective
    NCCL_SOCKET_IFNAME=ens3 here, eth0 there             right, where the interfaces are named so
    NCCL_DEBUG=INFO on one node                          nobody's business
    NCCL_IB_HCA=mlx5_0 here, mlx5_4 on another rank      right, where each GPU has a NIC of its own

Tried: two ranks on gloo, torch 2.13, the variable set for one of them; both waited until the time-out,
or the rank with the variable aborted and the other one waited.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ddp_doctor.knowledge.variables import is_of_another_backend, is_unknown, variables
from ddp_doctor.knowledge.versions import release

#: How much it matters that nodes or ranks differ.
Weight = Literal["fatal", "matters", "minor"]


@dataclass(frozen=True)
class Stake:
    """What a difference does, and what says so."""

    weight: Weight
    effect: str
    source: str


_TRIED = "tried with torch 2.13 and gloo, the variable set for one of two ranks"
_TRUNCATED = (
    "NCCL src/transport/net_socket.cc: its warning about messages of unexpected size names both variables"
)

#: With these the ranks do not meet, or wait for each other for ever.
_FATAL: Mapping[str, Stake] = {
    "NCCL_ALGO": Stake("fatal", "ranks that choose different algorithms wait for each other", _TRUNCATED),
    "NCCL_PROTO": Stake("fatal", "ranks that choose different protocols wait for each other", _TRUNCATED),
    "TORCH_DIST_INIT_BARRIER": Stake("fatal", "some ranks wait in a barrier that the others skip", _TRIED),
    "TORCH_GLOO_LAZY_INIT": Stake("fatal", "gloo's ranks connect at different moments, and abort", _TRIED),
    "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER": Stake("fatal", "gloo's ranks do not recognise each other", _TRIED),
    "GLOO_DEVICE_TRANSPORT": Stake("fatal", "gloo's ranks speak different protocols", _TRIED),
}
_DEBUG_DETAIL = Stake(
    "fatal", "with DETAIL a rank makes a further group, for which the others never come", _TRIED
)
_CROSS_NIC = Stake("fatal", "NCCL before 2.21.5 hangs where it differs", "NCCL 2.21.5, release notes")
_TWO_NETWORKS = Stake(
    "fatal",
    "ranks on InfiniBand or RoCE and ranks on TCP sockets cannot connect",
    "NCCL src/transport/net.cc: each end of a connection uses its own network's handle",
)
#: The release that made NCCL_CROSS_NIC harmless.
_CROSS_NIC_SINCE = (2, 21, 5)

_MATTERS = "ranks of one job are meant to have equal settings: what one of them does, its peers must expect"
_MINOR = "nothing that ranks must agree on, though seldom meant"

#: Named after a host's own interfaces, devices and tables: right where it differs, often forgotten where it lacks.
_OF_THE_HOST = (
    *("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "GLOO_SOCKET_IFNAME"),
    *("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE"),
)

_EACH_END = "each end of a connection between two GPUs chooses its transport by its own setting"
_CHOSEN = "NCCL src/transport.cc, selectTransport"
#: What the ranks of one node must have in common beyond what nodes must, or for another reason.
_WITHIN_A_NODE: Mapping[str, Stake] = {
    "NCCL_HOSTID": Stake(
        "matters",
        "ranks with another one count as another host's, and are reached over the network",
        "NCCL src/misc/utils.cc, getHostHash",
    ),
    "NCCL_P2P_DISABLE": Stake("matters", _EACH_END, _CHOSEN),
    "NCCL_P2P_LEVEL": Stake("matters", _EACH_END, _CHOSEN),
    "NCCL_SHM_DISABLE": Stake("matters", _EACH_END, _CHOSEN),
}

#: Logs, dumps, files, identities and CPUs of one host: nobody else notices.
_LOCAL = (
    *("NCCL_DEBUG", "NCCL_HOSTID", "NCCL_CONF_FILE", "NCCL_TOPO_", "NCCL_GRAPH_FILE", "NCCL_GRAPH_DUMP"),
    *("NCCL_NVTX", "NCCL_RAS_", "NCCL_PROFILE", "NCCL_INSPECTOR", "NCCL_PARAM_DUMP", "NCCL_PROXY_CPUSET"),
    *("NCCL_PROXY_DUMP", "NCCL_RMA_PROXY_DUMP", "NCCL_IGNORE_CPU_AFFINITY", "NCCL_CUDA_PATH", "NCCL_IBVERBS"),
    *(
        "NCCL_MNNVL_CLIQUE",
        "NCCL_MNNVL_UUID",
        "NCCL_SET_THREAD_NAME",
        "NCCL_REPORT_",
        "NCCL_VERSION",
        "NCCL_COMM_ID",
    ),
    *("NCCL_PROGRESS_COUNTER_", "NCCL_DIAGNOSTICS_ECC", "NCCL_IB_WQE_LATENCY"),
    *(
        "TORCH_FR_",
        "TORCHCOMM_",
        "TORCH_WATCHDOG_",
        "TORCH_INCLUDE_",
        "TORCH_NCCL_TRACE_",
        "TORCH_NCCL_DEBUG_INFO",
        "TORCH_NCCL_DUMP",
    ),
    *("TORCH_NCCL_DESYNC", "TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_EXTRA_DUMP", "TORCH_NCCL_LOG_"),
    *("TORCH_CPP_LOG", "TORCH_SHOW_CPP", "TORCH_SYMBOLIZE", "TORCH_PROFILER", "TORCH_WORKER_SERVER"),
    *("GLOO_LOG", "GLOO_DEVICE_TRANSPORT_TCP_TLS", "GLOO_DISABLE_CONNECTION_RETRIES", "TP_", "USE_LIBUV"),
)
_OWNERS = ("nccl", "torch", "gloo")
_TRUE, _FALSE = ("1", "y", "yes", "t", "true"), ("0", "n", "no", "f", "false")


@dataclass(frozen=True)
class Job:
    """What decides how much a difference matters: the backend, and what it runs on."""

    backend: str
    nccl_backend: str | None = None  # torch's class behind "nccl", where all nodes have the same
    nccl_versions: frozenset[str] = frozenset()
    has_rdma: bool = False  # and ranks that could use it, on several nodes


def is_compared(name: str) -> bool:
    """Whether it may be anybody's business that ranks have different values of this variable."""
    if name.startswith(_LOCAL):
        return name in _WITHIN_A_NODE
    known = variables().get(name)
    return is_unknown(name) if known is None else known.owner in _OWNERS


def is_of_a_host(name: str) -> bool:
    """Whether a value of this variable means nothing on another host."""
    return name in _OF_THE_HOST or name.startswith(_LOCAL)


def stake(name: str, values: frozenset[str | None], job: Job, *, within_a_node: bool = False) -> Stake | None:
    """What is at stake where a variable has these (effective) values; None where that is nobody's business.

    ``within_a_node`` where ranks of one node have different values, not nodes.
    """
    special = _WITHIN_A_NODE.get(name) if within_a_node else None
    if not is_compared(name) or (name.startswith(_LOCAL) and special is None):
        return None
    known = variables().get(name)
    if known is None:
        return Stake("minor", _MINOR, "a plug-in may read it")
    if name == "TORCH_DISTRIBUTED_DEBUG" and "DETAIL" not in values:
        return None
    if name in _OF_THE_HOST:
        return (
            Stake("minor", "it may have been forgotten where it is unset", known.source)
            if None in values
            else None
        )
    found = _fatal(name, values, job) or special or Stake("matters", _MATTERS, known.source)
    return found if _is_read(name, job) else Stake("minor", f"{_reader(job)} does not read it", known.source)


def _reader(job: Job) -> str:
    return job.nccl_backend or job.backend if job.backend == "nccl" else job.backend


def _fatal(name: str, values: frozenset[str | None], job: Job) -> Stake | None:
    if name == "TORCH_DISTRIBUTED_DEBUG":
        return _DEBUG_DETAIL
    if name == "NCCL_CROSS_NIC":
        old = any(release(version) < _CROSS_NIC_SINCE for version in job.nccl_versions)
        return _CROSS_NIC if old else None
    if name == "NCCL_IB_DISABLE" or (
        name == "NCCL_NET" and "socket" in {(one or "").lower() for one in values}
    ):
        return _TWO_NETWORKS if job.has_rdma else None
    return _FATAL.get(name)


def _is_read(name: str, job: Job) -> bool:
    """Whether the job's process group reads the variable."""
    other = {"gloo": "nccl", "nccl": "gloo"}.get(job.backend)
    known = variables()[name]
    return other is None or (
        known.owner != other
        and (known.read_when or "").lower() != f"{other} process group"
        and not is_of_another_backend(known, job.nccl_backend)
    )


def effective(name: str, value: str | None) -> str | None:
    """A value by what it does: None for an unset variable, its default or an empty one."""
    known = variables().get(name)
    if value is None or not value.strip():
        return None
    plain = value.strip()
    if known is None:
        return plain
    if known.type == "strict_bool":
        plain = "1" if plain.lower() in _TRUE else "0" if plain.lower() in _FALSE else plain
    if known.case == "any":
        plain = plain.upper()
    return None if known.default is not None and plain.lower() == known.default.strip().lower() else plain
