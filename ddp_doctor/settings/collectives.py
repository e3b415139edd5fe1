"""Which algorithms and protocols NCCL_ALGO and NCCL_PROTO leave for each collective.

    NCCL_ALGO=Tree                     from 2.24 on AllGather and Broadcast have none, and DDP needs both
    NCCL_ALGO=allreduce:Tree           the others keep all of theirs
    NCCL_ALGO=^NVLS                    all but this one
    NCCL_PROTO=^LL,LL128,Simple        nothing is left

Sources: NCCL src/graph/tuning.cc (parseList, ncclTopoTuneModel; since 2.24 a list counts for all functions, before
for AllReduce alone), src/enqueue.cc ("no algorithm/protocol available for function"); NCCL user guide,
NCCL_ALGO and NCCL_PROTO.
"""

from collections.abc import Mapping

ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
#: What a DDP job calls, and the algorithms that NCCL has for it.
BY_FUNCTION: Mapping[str, tuple[str, ...]] = {
    "AllReduce": ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"),
    "AllGather": ("Ring", "CollNetDirect", "NVLS", "PAT"),
    "Broadcast": ("Ring",),
}
#: From here on a list counts for all functions, and what it leaves without an algorithm fails.
STRICT_SINCE = (2, 24)

_OFF = "0"


def left(value: str, function: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """What of the ``known`` names a value leaves for a function; a list after its name counts before a bare one."""
    found = None
    for part in value.split(";"):
        name, colon, names = part.rpartition(":")
        if not colon or name.strip().lower() == function.lower():
            found = names
    if not found:
        return known
    listed = {word.strip().lower() for word in found.removeprefix("^").split(",")}
    return tuple(name for name in known if (name.lower() in listed) != found.startswith("^"))


def functions_without_algorithm(env: Mapping[str, str]) -> list[str]:
    """The collectives of a DDP job for which NCCL_ALGO leaves nothing, as NCCL reads it from 2.24 on."""
    value = env.get("NCCL_ALGO", "")
    off = {name.lower() for name in switched_off(env)}
    return [
        function
        for function, has in BY_FUNCTION.items()
        if value and not [name for name in left(value, function, has) if name.lower() not in off]
    ]


def switched_off(env: Mapping[str, str]) -> tuple[str, ...]:
    """The algorithms that another setting takes away: NVLS without NVLink SHARP, CollNet without its plug-in."""
    nvls = ("NVLS", "NVLSTree") if env.get("NCCL_NVLS_ENABLE", "").strip() == _OFF else ()
    collnet = (
        () if env.get("NCCL_COLLNET_ENABLE", _OFF).strip() != _OFF else ("CollNetDirect", "CollNetChain")
    )
    return (*nvls, *collnet)
