"""What a variable's value costs or risks although it does what it says: its conditions, its range, what it touches.

NCCL_P2P_DISABLE=1                slows: GPUs of one host exchange data through host memory
NCCL_PROTO=LL128                  unsafe: forced where NCCL would not choose it, it can corrupt data
NCCL_DEBUG=TRACE                  debug: a line for each call

NCCL_P2P_DISABLE=1 costs nothing where there is one GPU, NCCL_IB_DISABLE=1 where there is no InfiniBand,
NCCL_NVLS_ENABLE=0 where no NVSwitch reduces. Plug-ins of Google's clouds refuse to start unless the protocol,
the buffers and NVLink SHARP are set as their profile says (docs.cloud.google.com, GPUDirect-TCPXO,
"guest config checker"), so there these settings are needed. AWS's plug-in over EFA needs the protocol Simple for
right data; newer ones choose it themselves where it must be, but only if NCCL_PROTO is not set, and older ones never
(aws/aws-ofi-nccl issue 76 and src/nccl_ofi_net.cpp, nccl_net_ofi_configure_nccl_proto_simple).
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
    """The effects of a value of a variable in the table; none for an empty value or an unknown name."""
    variable = variables().get(name)
    if variable is None or not value:
        return ()
    return tuple(effect for effect in variable.effects if holds(effect.when, {name: value}))


def number(env: Env, name: str) -> int | None:
    """The number that NCCL reads; None where the variable is unset or empty."""
    value = env.get(name, "")
    return None if not value.strip() else strtoll(value)[0] or 0


def holds(when: When, env: Env) -> bool:
    """Whether all conditions hold in an environment."""
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
    """The value as its reader takes it: a number in decimal, a boolean as 1 or 0, else in capitals."""
    read, _ = strtoll(value)
    if variable.type in _NUMBERS:
        return str(read or 0)
    if variable.type == "level":
        return value if value in LEVELS or read is None else str(read)
    word = value.strip().lower()
    if variable.type == "strict_bool":
        return "1" if word in TRUE else "0" if word in FALSE else word
    return word.upper()


#: NCCL's own choice.
_OWN_CHOICE = (-1, -2)


@dataclass(frozen=True)
class OutOfRange:
    """A number outside of a range: what a sentence says of it, and the largest that is taken here."""

    says: str
    most: int
    row: Range


def out_of_range(name: str, env: Mapping[str, str], nccl: Version) -> OutOfRange | None:
    """What is wrong with a variable's number; None where it is inside of all ranges, or none is known."""
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
        env.get("NCCL_DEBUG", "").upper() in ("INFO", "TRACE") and bool(asked) and bool(chosen) != asked.startswith("^")
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
    """Return True if a network plug-in in use needs this setting."""
    return name in _PROFILE and any(variable.startswith(_NEEDED_BY_PLUGINS) for variable in env)


def said_for_plugin(name: str, env: Mapping[str, str]) -> str | None:
    """Return the sentence that takes the place of the usual one next to a network plug-in, or None."""
    if name == "NCCL_PROTO" and env.get(name, "").strip().upper() == "SIMPLE" and has_the_efa_plugin(env):
        return (
            "Older releases of AWS's plug-in need the Simple protocol on EFA. Newer ones choose it themselves if it is"
            " needed, and the setting then only disables the faster protocols."
        )
    return None


def has_the_efa_plugin(env: Mapping[str, str]) -> bool:
    """Whether the settings are of AWS's plug-in over EFA, which NCCL takes before its own transport."""
    efa = env.get("FI_PROVIDER", "").strip("\"' ").lower() == "efa"
    return efa or any(name.startswith(("FI_EFA_", "OFI_NCCL_")) for name in env)


def is_a_choice(name: str, value: str) -> bool:
    """Whether a pin may well be meant; the slowest protocol alone is not."""
    return name in _CHOICES and value.strip().upper() != "LL"
