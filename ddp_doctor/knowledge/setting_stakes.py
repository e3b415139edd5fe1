"""What a slow or unsafe setting touches, so that it costs nothing on a machine that has no such thing.

NCCL_P2P_DISABLE=1 costs nothing where there is one GPU, NCCL_IB_DISABLE=1 where there is no InfiniBand,
NCCL_NVLS_ENABLE=0 where no NVSwitch reduces. Plug-ins of Google's clouds refuse to start unless the protocol,
the buffers and NVLink SHARP are set as their profile says (docs.cloud.google.com, GPUDirect-TCPXO,
"guest config checker"), so there these settings are needed. AWS's plug-in over EFA needs the protocol Simple for
right data; newer ones choose it themselves where it must be, but only if NCCL_PROTO is not set, and older ones never
(aws/aws-ofi-nccl issue 76 and src/nccl_ofi_net.cpp, nccl_net_ofi_configure_nccl_proto_simple).
"""

from collections.abc import Mapping
from typing import Literal

#: ``paths``: between the GPUs of a node; ``rdma``: between nodes; ``gpudirect``: between NIC and GPU; ``network``:
#: a plug-in's; ``nvls``: NVLink SHARP; ``collectives``: any NCCL job of several ranks; ``job``: any job.
Stake = Literal["paths", "rdma", "gpudirect", "network", "nvls", "collectives", "job"]

_STAKES: dict[str, Stake] = {
    **dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE"), "paths"),
    **dict.fromkeys(
        ("NCCL_P2P_DIRECT_DISABLE", "NCCL_P2P_USE_CUDA_MEMCPY", "NCCL_IGNORE_DISABLED_P2P"), "paths"
    ),
    **dict.fromkeys(("NCCL_IB_DISABLE", "NCCL_NET"), "rdma"),
    **dict.fromkeys(("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE"), "gpudirect"),
    **dict.fromkeys(("NCCL_PXN_DISABLE", "NCCL_GDR_FLUSH_DISABLE", "NCCL_NET_GDR_C2C"), "gpudirect"),
    **dict.fromkeys(("NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_NCHANNELS"), "nvls"),
}
_NEEDED_BY_PLUGINS = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_SHIMNET_")
#: What such a profile sets.
_PROFILE = {
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_BUFFSIZE", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC"),
    *("NCCL_PXN_DISABLE", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NET", "NCCL_P2P_PXN_LEVEL"),
}
#: Pins of these are often meant: results that do not change from run to run, or a tuner's advice.
_CHOICES = ("NCCL_ALGO", "NCCL_PROTO")
#: For whom a setting that slows others is needed (NVIDIA/Megatron-LM megatron/training/arguments.py, validate_args).
NEEDED_FOR = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "Megatron-LM with tensor or context parallelism, before Blackwell, stops without it"
}
#: Protections that nccl-legacy has where they are asked for, and what nccl2 does without them (torch 2.15
#: nccl2/ProcessGroupNCCL.hpp; libtorch_cuda.so, where no function of c10d::nccl2 refers to these variables).
#: TORCH_NCCL_ENABLE_MONITORING and TORCH_NCCL_RETHROW_CUDA_ERRORS are on by default, so who sets them does without.
LOST_ON_NCCL2 = {
    "TORCH_NCCL_DESYNC_DEBUG": "After a time-out nccl2 does not say which rank fell behind.",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "nccl2 has no monitor that ends a process whose watchdog is stuck.",
    "TORCH_NCCL_NAN_CHECK": "nccl2 itself does not look for NaN in what is sent.",
    "TORCH_NCCL_PROPAGATE_ERROR": "On nccl2 a rank tells the others nothing of its error: each waits for its time-out.",
    "TORCH_NCCL_TEARDOWN_ON_TIMEOUT": "On nccl2 TORCH_NCCL_ASYNC_ERROR_HANDLING alone decides what a time-out does.",
}
#: What the class of torch's that does not read a variable reads in its place.
SAME_FOR_THE_OTHER = {
    "TORCH_FR_DUMP_ON_TIMEOUT": "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
    "TORCH_NCCL_NAN_CHECK": "TORCH_DIST_NAN_CHECK",
}
#: NCCL_DEBUG=INFO writes some hundred lines for each rank when it starts; for so many that is worth a word.
MANY_RANKS = 4096
#: Subsystems that write for every operation (NCCL src/include/nccl_common.h, INFO calls in src/enqueue.cc).
_EACH_CALL = {"COLL", "CALL", "ALL"}


def logs_each_call(env: Mapping[str, str]) -> bool:
    """Whether NCCL's log has a line for every collective of every rank."""
    asked = env.get("NCCL_DEBUG_SUBSYS", "").upper()
    chosen = _EACH_CALL.intersection(word.strip() for word in asked.removeprefix("^").split(","))
    return (
        env.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE")
        and bool(asked)
        and bool(chosen) != asked.startswith("^")
    )


def stake(name: str) -> Stake:
    """What a setting touches."""
    if name.startswith(("FI_", "OFI_NCCL_", "UCX_")):
        return "network"
    return _STAKES.get(name, "collectives" if name.startswith(("NCCL_", "TORCH_NCCL_")) else "job")


def is_needed_by_a_plugin(name: str, env: Mapping[str, str]) -> bool:
    """Whether a network plug-in whose settings are there needs this one as well."""
    if name == "NCCL_PROTO" and env.get(name, "").strip().upper() == "SIMPLE" and has_the_efa_plugin(env):
        return True
    return name in _PROFILE and any(other.startswith(_NEEDED_BY_PLUGINS) for other in env)


def has_the_efa_plugin(env: Mapping[str, str]) -> bool:
    """Whether the settings are of AWS's plug-in over EFA, which NCCL takes before its own transport."""
    efa = env.get("FI_PROVIDER", "").strip("\"' ").lower() == "efa"
    return efa or any(name.startswith(("FI_EFA_", "OFI_NCCL_")) for name in env)


def is_a_choice(name: str, value: str) -> bool:
    """Whether a pin may well be meant; the slowest protocol alone is not."""
    return name in _CHOICES and value.strip().upper() != "LL"
