"""What a slow or unsafe setting touches, so that it costs nothing on a machine that has no such thing.

NCCL_P2P_DISABLE=1 costs nothing where there is one GPU, NCCL_IB_DISABLE=1 where there is no InfiniBand,
NCCL_NVLS_ENABLE=0 where no NVSwitch reduces. Plug-ins of Google's clouds refuse to start unless the protocol,
the buffers and NVLink SHARP are set as their profile says (docs.cloud.google.com, GPUDirect-TCPXO,
"guest config checker"), so there these settings are needed. AWS's plug-in over EFA needs the protocol Simple for
right data; newer ones choose it themselves where it must be, but only if NCCL_PROTO is not set, and older ones never
(aws/aws-ofi-nccl issue 76 and src/nccl_ofi_net.cpp, nccl_net_ofi_configure_nccl_proto_simple).
"""

from collections.abc import Mapping

from ddp_doctor.settings.table import Scope, variables

_NEEDED_BY_PLUGINS = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_SHIMNET_")
#: What such a profile sets.
_PROFILE = {
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_BUFFSIZE", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC"),
    *("NCCL_PXN_DISABLE", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NET", "NCCL_P2P_PXN_LEVEL"),
}
#: Pins of these are often meant: results that do not change from run to run, or a tuner's advice.
_CHOICES = ("NCCL_ALGO", "NCCL_PROTO")
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


def scope(name: str) -> Scope:
    """What a setting touches."""
    if name.startswith(("FI_", "OFI_NCCL_", "UCX_")):
        return "network"
    variable = variables().get(name)
    if variable is not None and variable.scope is not None:
        return variable.scope
    return "collectives" if name.startswith(("NCCL_", "TORCH_NCCL_")) else "job"


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
