"""Settings that do nothing beside another one.

    NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=NVL        the level is not even read
    NCCL_IB_DISABLE=1 NCCL_IB_GID_INDEX=3        there is no connection that would take an index
    NCCL_DEBUG=WARN NCCL_DEBUG_SUBSYS=ALL        subsystems filter what INFO prints

Each row names its source in NCCL 2.30.7 or torch 2.13.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ddp_doctor.knowledge.values import strtoll

Env = Mapping[str, str]
Test = Callable[[Env], bool]


@dataclass(frozen=True)
class Beside:
    """A setting, and those that do nothing beside it. ``minor``: nobody is likely to wait for their effect."""

    name: str  # of the setting that decides
    holds: Test
    idle: str  # a pattern of the names that do nothing
    why: str
    source: str
    minor: bool = False
    of_rdma: bool = False  # about settings of InfiniBand and RoCE
    needs_it: bool = False  # they wait for a setting that is not there


def number(env: Env, name: str) -> int | None:
    """The number that NCCL reads; None where the variable is unset or empty."""
    value = env.get(name, "")
    return None if not value.strip() else strtoll(value)[0] or 0


def is_on(name: str) -> Test:
    """Whether a boolean of NCCL's is set to anything but 0."""
    return lambda env: (number(env, name) or 0) not in (0, -1, -2)


def is_off(name: str) -> Test:
    """Whether a boolean of NCCL's is set to 0."""
    return lambda env: number(env, name) == 0


def says_yes(env: Env, name: str) -> bool:
    """Whether one of torch's booleans is on."""
    return env.get(name, "").lower() in ("y", "yes", "1", "t", "true")


def _logs_nothing_more(env: Env) -> bool:
    return env.get("NCCL_DEBUG", "").upper() in ("", "VERSION", "WARN", "NONE")


def ib_is_off(env: Env) -> bool:
    """Whether NCCL has neither its own RDMA transport nor a plug-in's."""
    plugin = env.get("NCCL_NET_PLUGIN", "none").lower()
    return (
        is_on("NCCL_IB_DISABLE")(env) and plugin in ("", "none") and env.get("NCCL_NET", "") in ("", "Socket")
    )


def _is_socket(env: Env) -> bool:
    return env.get("NCCL_NET", "").lower() == "socket"


def _has_gid_index(env: Env) -> bool:
    return (number(env, "NCCL_IB_GID_INDEX") or 0) > 0


def _records_nothing(env: Env) -> bool:
    sizes = (env.get(name) for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"))
    return next((size for size in sizes if size is not None), "").strip() == "0"


BESIDE: tuple[Beside, ...] = (
    Beside(
        "NCCL_P2P_DISABLE",
        lambda env: number(env, "NCCL_P2P_DISABLE") == 1,
        "NCCL_P2P_(LEVEL|READ_ENABLE|DIRECT_DISABLE|USE_CUDA_MEMCPY)|NCCL_IGNORE_DISABLED_P2P",
        "It forbids P2P whatever else is set.",
        "NCCL src/graph/paths.cc, ncclGetLevel",
    ),
    Beside(
        "NCCL_IB_DISABLE",
        ib_is_off,
        "NCCL_IB_(?!DISABLE$).*",
        "NCCL then opens no RDMA device, and these describe one.",
        "NCCL src/transport/net_ib/init.cc",
        of_rdma=True,
    ),
    Beside(
        "NCCL_NET",
        _is_socket,
        "NCCL_IB_(?!DISABLE$).*|NCCL_NET_GDR_.*",
        "NCCL then talks TCP between nodes, and these are about RDMA.",
        "NCCL src/plugin/net.cc and src/transport/net_socket.cc",
        of_rdma=True,
    ),
    Beside(
        "NCCL_NET",
        lambda env: env.get("NCCL_NET", "").upper() == "IB",
        "NCCL_SOCKET_NTHREADS|NCCL_NSOCKS_PERTHREAD",
        "Only the transport over TCP reads them.",
        "NCCL src/transport/net_socket.cc",
        minor=True,
    ),
    Beside(
        "NCCL_IB_GID_INDEX",
        _has_gid_index,
        "NCCL_IB_(ADDR_FAMILY|ADDR_RANGE|ROCE_VERSION_NUM)",
        "NCCL searches the table by them only where no index is set.",
        "NCCL src/transport/net_ib/connect.cc, ncclIbGetGidIndex",
        of_rdma=True,
    ),
    Beside(
        "NCCL_NVLS_ENABLE",
        is_off("NCCL_NVLS_ENABLE"),
        "NCCL_NVLS_(?!ENABLE$).*|NCCL_NVLSTREE_.*",
        "NCCL then sets no NVLink SHARP up.",
        "NCCL src/transport/nvls.cc",
        minor=True,
    ),
    Beside(
        "NCCL_SHM_DISABLE",
        is_on("NCCL_SHM_DISABLE"),
        "NCCL_SHM_(?!DISABLE$).*",
        "They describe how NCCL uses shared memory.",
        "NCCL src/transport/shm.cc",
        minor=True,
    ),
    Beside(
        "NCCL_DEBUG",
        _logs_nothing_more,
        "NCCL_DEBUG_SUBSYS",
        "Subsystems choose among the lines of NCCL_DEBUG=INFO.",
        "NCCL src/debug.cc",
        minor=True,
        needs_it=True,
    ),
    Beside(
        "NCCL_DEBUG",
        lambda env: env.get("NCCL_DEBUG", "").upper() in ("", "VERSION"),
        "NCCL_DEBUG_FILE",
        "NCCL opens the file only where it has more to say than its version.",
        "NCCL src/debug.cc",
        minor=True,
        needs_it=True,
    ),
    Beside(
        "NCCL_IB_QPS_PER_CONNECTION",
        lambda env: (
            (number(env, "NCCL_IB_QPS_PER_CONNECTION") or 1) <= 1 and is_on("NCCL_IB_SPLIT_DATA_ON_QPS")(env)
        ),
        "NCCL_IB_SPLIT_DATA_ON_QPS",
        "There is only one queue pair to split the data on.",
        "NCCL user guide, NCCL_IB_SPLIT_DATA_ON_QPS",
        minor=True,
        needs_it=True,
    ),
    Beside(
        "NCCL_GDRCOPY_ENABLE",
        lambda env: not is_on("NCCL_GDRCOPY_ENABLE")(env),
        "NCCL_GDRCOPY_(FIFO|FLUSH|SYNC)_ENABLE",
        "GDRCopy is off by default.",
        "NCCL src/gdrwrap.cc and src/proxy.cc",
        minor=True,
        needs_it=True,
    ),
    Beside(
        "TORCH_NCCL_BLOCKING_WAIT",
        lambda env: says_yes(env, "TORCH_NCCL_BLOCKING_WAIT"),
        "TORCH_NCCL_(ASYNC_ERROR_HANDLING|DESYNC_DEBUG|ENABLE_MONITORING|HEARTBEAT_TIMEOUT_SEC)",
        "With it torch starts neither the watchdog that handles errors nor its monitor.",  # nccl2 never has a monitor
        "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp and nccl2/ProcessGroupNCCL.hpp",
    ),
    Beside(
        "TORCH_FR_BUFFER_SIZE",
        _records_nothing,
        "TORCH_(NCCL|FR)_DUMP_ON_TIMEOUT|TORCH_FR_DUMP_TEMP_FILE|TORCH_NCCL_DEBUG_INFO_(TEMP|PIPE)_FILE",
        "The flight recorder holds no entries that could be written.",
        "torch/csrc/distributed/c10d/FlightRecorder.hpp",
    ),
)

#: What the launcher sets by itself, so that nobody waits for its effect.
_NOT_MEANT = {("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")}


def idle(env: Env) -> Iterator[tuple[Beside, tuple[str, ...]]]:
    """The rows that hold in an environment, each with the names that are set and do nothing."""
    for row in BESIDE:
        names = tuple(name for name in env if env[name] and re.fullmatch(row.idle, name))
        meant = tuple(name for name in names if (name, env[name]) not in _NOT_MEANT)
        if meant and row.holds(env):
            yield row, meant
