"""The costs and risks of values that work as intended: conditions, ranges, and the scope of a setting.

NCCL_P2P_DISABLE=1                slows: GPUs of one host exchange data through host memory
NCCL_PROTO=LL128                  unsafe: can corrupt data if NCCL would not choose it
NCCL_DEBUG=TRACE                  debug: a line for each call

Some costs need hardware: NCCL_P2P_DISABLE=1 is free with one GPU, NCCL_IB_DISABLE=1 without InfiniBand, and
NCCL_NVLS_ENABLE=0 without an NVSwitch that reduces. Plug-ins for Google Cloud start only if the protocol, the buffers
and NVLink SHARP match their profile (docs.cloud.google.com, GPUDirect-TCPXO, "guest config checker"), so these settings
are needed with them. AWS's plug-in over EFA needs the protocol Simple for correct data. Newer releases choose it
themselves if required, but only if NCCL_PROTO is not set; older releases never do (aws/aws-ofi-nccl issue 76 and
src/nccl_ofi_net.cpp, nccl_net_ofi_configure_nccl_proto_simple).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_doctor.knowledge.versions import Version
from ddp_doctor.settings.conditions import Condition, When, asks_for, strtoll
from ddp_doctor.settings.table import Effect, Range, Scope, Variable, variables
from ddp_doctor.settings.values import FALSE, LEVELS, TRUE

Env = Mapping[str, str]

_NUMBERS = ("bool", "int", "size")


def effects(name: str, value: str) -> tuple[Effect, ...]:
    """Return the effects of a value of a variable in the table; empty for an empty value or an unknown name."""
    variable = variables().get(name)
    if variable is None or not value:
        return ()
    return tuple(effect for effect in variable.effects if holds(effect.when, {name: value}))


def number(env: Env, name: str) -> int | None:
    """Return the number that NCCL reads, or None if the variable is unset or empty."""
    value = env.get(name, "")
    return None if not value.strip() else strtoll(value)[0] or 0


def holds(when: When, env: Env) -> bool:
    """Return True if all conditions hold in an environment."""
    return all(_holds(name, condition, env) for name, condition in when)


def _holds(name: str, condition: Condition, env: Env) -> bool:
    value, operands = env.get(name, ""), condition.operands
    if not value.strip():
        return "unset" in operands
    if condition.test == "any":
        return True
    if condition.test in ("has", "allows"):
        return asks_for(value, operands, or_keeps=condition.test == "allows")
    read = _as_read(variables()[name], value)
    if condition.test in ("is", "not"):
        return (read in [operand.upper() for operand in operands]) == (condition.test == "is")
    found, _ = strtoll(read)
    limit = int(operands[0]) if operands[0].isdecimal() else number(env, operands[0])
    if found is None or limit is None:
        return False
    return 0 <= found < limit if condition.test == "below" else found > limit


def _as_read(variable: Variable, value: str) -> str:
    """Return the value in normal form: a decimal number, 1 or 0 for a boolean, otherwise capitals."""
    read, _ = strtoll(value)
    if variable.type in _NUMBERS:
        return str(read or 0)
    if variable.type == "level":
        return value if value in LEVELS or read is None else str(read)
    word = value.strip().lower()
    if variable.type == "strict_bool":
        return "1" if word in TRUE else "0" if word in FALSE else word
    return word.upper()


#: The values for NCCL's own choice.
_OWN_CHOICE = (-1, -2)


@dataclass(frozen=True)
class OutOfRange:
    """A number out of range: its text, and the largest valid number in this release."""

    says: str
    most: int
    row: Range


def out_of_range(name: str, env: Mapping[str, str], nccl: Version) -> OutOfRange | None:
    """Return how a variable's number is out of range, or None if it is in range or has no known range."""
    value, variable = number(env, name), variables().get(name)
    if value is None or value in _OWN_CHOICE or variable is None:
        return None
    for row in variable.ranges:
        known = [(least, most) for since, least, most in row.takes if not nccl or since <= nccl]
        least, most = known[-1] if known else row.takes[0][1:]
        if not least <= value <= most:
            says = row.says or f"is out of range ({least} to {most})"
            # how long an RDMA connection waits: 4.096 microseconds times a power of two (InfiniBand specification)
            wait = f"{4.096e-3 * 2 ** min(value, 63):.2g} ms" if value >= 0 else ""
            return OutOfRange(says.format(wait=wait), most, row)
    return None


_NEEDED_BY_PLUGINS = ("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_SHIMNET_")
#: The variables that such a profile sets.
_PROFILE = {
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_BUFFSIZE", "NCCL_NET_GDR_LEVEL", "NCCL_CROSS_NIC"),
    *("NCCL_PXN_DISABLE", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NET", "NCCL_P2P_PXN_LEVEL"),
}
#: Settings that are often pinned on purpose, for results that do not change from run to run or by a tuner's advice.
_CHOICES = ("NCCL_ALGO", "NCCL_PROTO")
#: Minimum number of ranks to mention NCCL_DEBUG=INFO, which writes some hundred lines per rank at the start.
MANY_RANKS = 4096
#: Subsystems that write for every operation (NCCL src/include/nccl_common.h, INFO calls in src/enqueue.cc).
_EACH_CALL = {"COLL", "CALL", "ALL"}


def logs_each_call(env: Mapping[str, str]) -> bool:
    """Return True if NCCL logs every collective of every rank."""
    asked = env.get("NCCL_DEBUG_SUBSYS", "").upper()
    chosen = _EACH_CALL.intersection(word.strip() for word in asked.removeprefix("^").split(","))
    return (
        env.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE") and bool(asked) and bool(chosen) != asked.startswith("^")
    )


def scope(name: str) -> Scope:
    """Return the scope of a setting."""
    if name.startswith(("FI_", "OFI_NCCL_", "UCX_")):
        return "network"
    variable = variables().get(name)
    if variable is not None and variable.scope is not None:
        return variable.scope
    return "collectives" if name.startswith(("NCCL_", "TORCH_NCCL_")) else "job"


def is_needed_by_a_plugin(name: str, env: Mapping[str, str]) -> bool:
    """Return True if a network plug-in in use needs this setting."""
    return name in _PROFILE and any(variable.startswith(_NEEDED_BY_PLUGINS) for variable in env)


def said_for_plugin(name: str, env: Mapping[str, str]) -> str | None:
    """Return the sentence that replaces the usual one if a network plug-in is used, or None."""
    if name == "NCCL_PROTO" and env.get(name, "").strip().upper() == "SIMPLE" and has_the_efa_plugin(env):
        return (
            "Older releases of AWS's plug-in need the Simple protocol on EFA. Newer ones choose it themselves if it is"
            " needed, and the setting then only disables the faster protocols."
        )
    return None


def has_the_efa_plugin(env: Mapping[str, str]) -> bool:
    """Return True if settings are for AWS's plug-in over EFA, which NCCL prefers to its own transport."""
    efa = env.get("FI_PROVIDER", "").strip("\"' ").lower() == "efa"
    return efa or any(name.startswith(("FI_EFA_", "OFI_NCCL_")) for name in env)


def is_a_choice(name: str, value: str) -> bool:
    """Return True if the value may be a deliberate choice. Forcing only LL, the slowest protocol, is not."""
    return name in _CHOICES and value.strip().upper() != "LL"
