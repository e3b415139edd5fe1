"""Settings that another setting disables, that contradict each other, or that have two names.

    NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=NVL           the level is not even read
    NCCL_NET=IB NCCL_IB_DISABLE=1                   no network is left, init fails
    NCCL_ALGO=Tree                                  DDP's broadcast has no algorithm (NCCL 2.24 and later)
    NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8 more than 64 sockets: NCCL takes 4 per thread

The rows of the table contain what follows from comparing values. This module contains what must be computed: the
algorithms and protocols that NCCL_ALGO and NCCL_PROTO leave for each collective.

    NCCL_ALGO=Tree                     since 2.24, AllGather and Broadcast have none, and DDP needs both
    NCCL_ALGO=allreduce:Tree           the other collectives keep all algorithms
    NCCL_ALGO=^NVLS                    all but this one
    NCCL_PROTO=^LL,LL128,Simple        nothing is left

Sources: NCCL src/graph/tuning.cc (parseList, ncclTopoTuneModel; since 2.24 a list applies to all functions,
before only to AllReduce), src/enqueue.cc ("no algorithm/protocol available for function"); NCCL user guide,
NCCL_ALGO and NCCL_PROTO.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from ddp_doctor.knowledge.versions import Version
from ddp_doctor.settings.effects import Env, holds, number
from ddp_doctor.settings.releases import Installed
from ddp_doctor.settings.table import Conflict, Silencer, variables
from ddp_doctor.settings.values import effective, misread

PROTOCOLS = ("LL", "LL128", "Simple")
#: The collectives of a DDP job, and the algorithms that NCCL has for each.
BY_FUNCTION: Mapping[str, tuple[str, ...]] = {
    "AllReduce": ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"),
    "AllGather": ("Ring", "CollNetDirect", "NVLS", "PAT"),
    "Broadcast": ("Ring",),
}
#: Since this release, a list counts for all functions, and a function without an algorithm fails.
STRICT_SINCE = (2, 24)

_OFF = "0"


def left(value: str, function: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ``known`` names that a value leaves for a function. A list for the function overrides a bare list."""
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
    """Return the collectives of a DDP job without an allowed algorithm in NCCL_ALGO, for NCCL 2.24 or later."""
    value = env.get("NCCL_ALGO", "")
    off = {name.lower() for name in switched_off(env)}
    return [
        function
        for function, has in BY_FUNCTION.items()
        if value and not [name for name in left(value, function, has) if name.lower() not in off]
    ]


def switched_off(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the algorithms that another setting disables: NVLS without NVLink SHARP, CollNet without its plug-in."""
    nvls = ("NVLS", "NVLSTree") if env.get("NCCL_NVLS_ENABLE", "").strip() == _OFF else ()
    collnet = () if env.get("NCCL_COLLNET_ENABLE", _OFF).strip() != _OFF else ("CollNetDirect", "CollNetChain")
    return (*nvls, *collnet)


#: MAX_SOCKETS in NCCL src/transport/net_socket.cc.
MOST_SOCKETS = 64
#: Set by the launcher itself, so no user expects an effect.
_NOT_MEANT = {("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")}


@lru_cache(maxsize=1)
def silencers() -> tuple[Silencer, ...]:
    """Return the rows on settings that disable other settings."""
    return tuple(row for variable in variables().values() for row in variable.silencers)


def silenced(env: Env) -> Iterator[tuple[Silencer, tuple[str, ...]]]:
    """Return the rows whose condition is met, each with the settings that have no effect."""
    for row in silencers():
        if holds(row.when, env):
            names = tuple(name for name in env if env[name] and re.fullmatch(row.names, name))
            meant = tuple(name for name in names if (name, env[name]) not in _NOT_MEANT)
            if meant:
                yield row, meant


def ib_is_off(env: Env) -> bool:
    """Return True if NCCL has neither its own RDMA transport nor a plug-in's."""
    return any(holds(row.when, env) for row in variables()["NCCL_IB_DISABLE"].silencers)


@lru_cache(maxsize=1)
def _conflict_rows() -> tuple[Conflict, ...]:
    return tuple(row for variable in variables().values() for row in variable.conflicts)


def conflicts(env: Env, nccl: Version) -> Iterator[Conflict]:
    """Yield the conflicts between these settings; ``nccl`` is () if the release is unknown."""
    yield from filter(None, (find(env, nccl) for find in _COMPUTED))
    yield from (row for row in _conflict_rows() if holds(row.when, env))


def _no_algorithm(env: Env, nccl: Version) -> Conflict | None:
    lacking = functions_without_algorithm(env)
    if nccl and nccl < STRICT_SINCE:  # a list applies only to AllReduce
        lacking = [function for function in lacking if function == "AllReduce"]
    if not lacking:
        return None
    algorithms, names, leave = env["NCCL_ALGO"], ["NCCL_ALGO"], "leaves"
    if "NVLS" in algorithms.upper() and "AllReduce" in lacking and env.get("NCCL_NVLS_ENABLE"):
        names, leave = ["NCCL_ALGO", "NCCL_NVLS_ENABLE"], "leave"
    why = (
        'NCCL 2.24 and later end the job: with "Unrecognized element token" in init if a'
        ' word is unknown, otherwise with "no algorithm/protocol available". A list applies'
        " to all collectives; allreduce:NAME restricts one."
    )
    strange = misread("NCCL_ALGO", algorithms)
    return Conflict(
        tuple(names),
        f"{leave} {_listed(lacking)} without an algorithm",
        f"{why} {strange.why}" if strange else why,
        "NCCL src/graph/tuning.cc and src/enqueue.cc",
        ("NCCL_ALGO",),
        fails_from=() if "AllReduce" in lacking else STRICT_SINCE,
    )


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _no_protocol(env: Env, _: Version) -> Conflict | None:
    value, known = env.get("NCCL_PROTO", ""), PROTOCOLS
    if not value or all(left(value, function, known) for function in BY_FUNCTION):
        return None
    return Conflict(
        ("NCCL_PROTO",),
        "leaves NCCL without a protocol",
        'The job ends with "Unrecognized element token" in init if a word is unknown,'
        ' otherwise with "no algorithm/protocol available" in its first collective.',
        "NCCL src/graph/tuning.cc and src/enqueue.cc",
        ("NCCL_PROTO",),
        fails_from=(),
    )


def _too_many_sockets(env: Env, _: Version) -> Conflict | None:
    threads, each = number(env, "NCCL_SOCKET_NTHREADS"), number(env, "NCCL_NSOCKS_PERTHREAD")
    if not threads or not each or threads < 0 or each < 0 or threads * each <= MOST_SOCKETS:
        return None
    threads = min(threads, 16)
    return Conflict(
        ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"),
        f"request {threads * each} sockets",
        f"NCCL opens at most {MOST_SOCKETS} per connection, and uses {MOST_SOCKETS // threads} per thread.",
        "NCCL src/transport/net_socket.cc, ncclNetSocketGetNsockNthread",
        ("NCCL_NSOCKS_PERTHREAD",),
    )


_COMPUTED: tuple[Callable[[Env, Version], Conflict | None], ...] = (_no_algorithm, _no_protocol, _too_many_sockets)


def disagreeing(env: Env, installed: Installed) -> dict[str, str]:
    """Map each old name whose value differs from the new name's to the new name, if that is read.

    TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC has no older name in the table: nccl2 also reads the older name, as the time that
    it waits before it aborts (torch 2.15 libtorch_cuda.so, nccl2::ProcessGroupNCCL::abortProcess).
    """
    found = {}
    for new, value in env.items():
        variable = variables().get(new)
        old = variable.older_name if variable else None
        if variable is None or old is None or not value or not env.get(old):
            continue
        same_readers = installed.backend or variable.backend == variables()[old].backend
        if same_readers and installed.reads(new) and effective(new, value) != effective(new, env[old]):
            found[old] = new
    return found


@lru_cache(maxsize=1)
def newer_names() -> Mapping[str, str]:
    """Map each old name that is still read to the name that takes precedence if both are set."""
    return {variable.older_name: new for new, variable in variables().items() if variable.older_name}


def does_not_go_with(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that disable one of these settings or conflict with it, sorted.

    NCCL_IB_GID_INDEX=3    does not go with NCCL_IB_DISABLE and NCCL_NET
    NCCL_SHM_DISABLE=1     does not go with NCCL_P2P_DISABLE
    """
    return _does_not_go_with(tuple(settings.items()))


@lru_cache(maxsize=256)
def _does_not_go_with(settings: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    env = dict(settings)
    examples = ((name, value) for name, value in _deciding() if name not in env)
    return tuple(sorted({name for name, value in examples if _harms(env, name, value)}))


@lru_cache(maxsize=1)
def _deciding() -> tuple[tuple[str, str], ...]:
    """Return a value that meets each row's conditions, for the settings that decide about others."""
    decisive = [row for row in silencers() if not row.needed and row.about != "plugin"]
    conditions = [
        *(named for row in decisive for named in row.when if named[0] == row.name),
        *(named for row in _conflict_rows() if all(about.example for _, about in row.when) for named in row.when),
    ]
    examples = [(name, condition.example or "") for name, condition in conditions]
    return tuple(dict.fromkeys([("NCCL_ALGO", "NVLS"), *examples]))  # the first of the computed ones


def _harms(env: Env, name: str, value: str) -> bool:
    """Return True if an additional setting disables or contradicts one in the environment."""
    together = {**env, name: value}
    idle = {partner for row, others in silenced(together) if row.name == name for partner in others}
    fighting = {partner for found in conflicts(together, ()) if name in found.names for partner in found.names}
    return bool(env.keys() & (idle | fighting))
