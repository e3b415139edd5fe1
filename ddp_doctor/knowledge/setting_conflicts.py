"""Settings that cannot both be meant, or with which NCCL fails.

NCCL_NET=IB NCCL_IB_DISABLE=1                   no network is left, init fails
NCCL_ALGO=Tree                                  DDP's broadcast has no algorithm (NCCL 2.24 and later)
NCCL_MIN_NCHANNELS=16 NCCL_MAX_NCHANNELS=8      the minimum wins
NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8 more than 64 sockets: NCCL takes 4 per thread
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ddp_doctor.knowledge import collectives
from ddp_doctor.knowledge.agreement import effective
from ddp_doctor.knowledge.setting_pairs import Env, is_off, is_on, number, says_yes
from ddp_doctor.knowledge.values import misread
from ddp_doctor.knowledge.variables import Installed, variables
from ddp_doctor.knowledge.versions import Version

#: MAX_SOCKETS in NCCL src/transport/net_socket.cc.
MOST_SOCKETS = 64


@dataclass(frozen=True)
class Conflict:
    """What is wrong with some settings together, and which of them to take out first.

    ``fails``: NCCL ends with an error; None where that depends on a version that is not known.
    """

    names: tuple[str, ...]
    says: str  # after the settings: "leave no network"
    why: str
    source: str
    without: tuple[str, ...]
    fails: bool | None = False


_Find = Callable[[Env, Version], Conflict | None]


def conflicts(env: Env, nccl: Version) -> Iterator[Conflict]:
    """What is wrong with these settings together; ``nccl`` is () where the release is not known."""
    for find in _FINDERS:
        found = find(env, nccl)
        if found is not None:
            yield found


def _no_network(env: Env, _: Version) -> Conflict | None:
    if env.get("NCCL_NET", "").upper() != "IB" or not is_on("NCCL_IB_DISABLE")(env):
        return None
    return Conflict(
        ("NCCL_NET", "NCCL_IB_DISABLE"),
        "leave NCCL no network",
        "NCCL_NET names the one transport that may be used, and the other setting forbids it: init fails.",
        "NCCL src/plugin/net.cc, ncclNetInit",
        ("NCCL_IB_DISABLE",),
        fails=True,
    )


def _no_algorithm(env: Env, nccl: Version) -> Conflict | None:
    lacking = collectives.functions_without_algorithm(env)
    strict = nccl >= collectives.STRICT_SINCE
    if not strict and nccl:
        lacking = [one for one in lacking if one == "AllReduce"]
    if not lacking:
        return None
    off = "NCCL_NVLS_ENABLE"
    beside = (
        (off,) if off in env and collectives.switched_off({off: env[off]}) and "AllReduce" in lacking else ()
    )
    words = " and ".join([", ".join(lacking[:-1]), lacking[-1]] if len(lacking) > 1 else lacking)
    strange = misread("NCCL_ALGO", env["NCCL_ALGO"])
    return Conflict(
        ("NCCL_ALGO", *(name for name in beside if "NVLS" in env["NCCL_ALGO"].upper())),
        f"leave{'' if 'NVLS' in env['NCCL_ALGO'].upper() and beside else 's'} {words} without an algorithm",
        'The job ends with "no algorithm/protocol available" in NCCL 2.24 and later, where a list counts for all'
        f" collectives; allreduce:NAME restricts one of them.{f' {strange.why}' if strange else ''}",
        "NCCL src/graph/tuning.cc and src/enqueue.cc",
        ("NCCL_ALGO",),
        fails=True if strict or "AllReduce" in lacking else None,
    )


def _no_protocol(env: Env, _: Version) -> Conflict | None:
    value = env.get("NCCL_PROTO", "")
    known = collectives.PROTOCOLS
    if not value or all(collectives.left(value, one, known) for one in collectives.BY_FUNCTION):
        return None
    return Conflict(
        ("NCCL_PROTO",),
        "leaves NCCL no protocol",
        'The job ends with "no algorithm/protocol available" in its first collective.',
        "NCCL src/graph/tuning.cc and src/enqueue.cc",
        ("NCCL_PROTO",),
        fails=True,
    )


def _ranks_share_gpus(env: Env, nccl: Version) -> Conflict | None:
    if not (is_on("NCCL_MULTI_RANK_GPU_ENABLE")(env) and number(env, "NCCL_NVLS_ENABLE") == 1):
        return None
    return Conflict(
        ("NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NVLS_ENABLE"),
        "cannot both be had",
        "NCCL asks for NVLink SHARP and cannot have it where ranks share a GPU: init fails.",
        "NCCL user guide, NCCL_MULTI_RANK_GPU_ENABLE",
        ("NCCL_NVLS_ENABLE",),
        fails=True if nccl >= (2, 30) else None,
    )


def _above(least: str, most: str, why: str, source: str) -> _Find:
    def find(env: Env, _: Version) -> Conflict | None:
        low, high = number(env, least), number(env, most)
        if low is None or high is None or high <= 0 or low <= high:
            return None
        return Conflict((least, most), "contradict each other", why, source, (least, most))

    return find


def _sockets(env: Env, _: Version) -> Conflict | None:
    threads, each = number(env, "NCCL_SOCKET_NTHREADS"), number(env, "NCCL_NSOCKS_PERTHREAD")
    if not threads or not each or threads < 0 or each < 0 or threads * each <= MOST_SOCKETS:
        return None
    threads = min(threads, 16)
    return Conflict(
        ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"),
        f"ask for {threads * each} sockets",
        f"NCCL opens at most {MOST_SOCKETS} for a connection, and takes {MOST_SOCKETS // threads} for each thread.",
        "NCCL src/transport/net_socket.cc, ncclNetSocketGetNsockNthread",
        ("NCCL_NSOCKS_PERTHREAD",),
    )


def _mnnvl(env: Env, _: Version) -> Conflict | None:
    if not (number(env, "NCCL_MNNVL_ENABLE") == 1 and is_off("NCCL_CUMEM_ENABLE")(env)):
        return None
    return Conflict(
        ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE"),
        "cannot both be had",
        "NVLink between nodes needs cuMem allocations, which the other setting turns off.",
        "NCCL src/mnnvl.cc",
        ("NCCL_CUMEM_ENABLE",),
    )


def _blocking(env: Env, _: Version) -> Conflict | None:
    wants = says_yes(env, "TORCH_NCCL_USE_COMM_NONBLOCKING")
    if not (wants and is_on("NCCL_COMM_BLOCKING")(env)):
        return None
    return Conflict(
        ("NCCL_COMM_BLOCKING", "TORCH_NCCL_USE_COMM_NONBLOCKING"),
        "contradict each other",
        "NCCL's own variable overrules what torch asks for: communicators block.",
        "NCCL src/init.cc, envConfigOverride",
        ("NCCL_COMM_BLOCKING",),
    )


def _only_network(env: Env, _: Version) -> Conflict | None:
    if not (number(env, "NCCL_P2P_DISABLE") == 1 and is_on("NCCL_SHM_DISABLE")(env)):
        return None
    return Conflict(
        ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
        "send all data between the GPUs of a node over the network",
        "Neither direct copies nor shared memory are left, and the network carries a fraction of either.",
        "NCCL src/transport.cc, selectTransport",
        ("NCCL_SHM_DISABLE", "NCCL_P2P_DISABLE"),
    )


_SOURCE = "NCCL src/graph/connect.cc, ncclTopoPostset"
_FINDERS: tuple[_Find, ...] = (
    _no_network,
    _no_algorithm,
    _no_protocol,
    _ranks_share_gpus,
    _above(
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL cuts the channels to the maximum and then copies them up to the minimum: the minimum wins.",
        _SOURCE,
    ),
    _above(
        "NCCL_MIN_P2P_NCHANNELS",
        "NCCL_MAX_P2P_NCHANNELS",
        "NCCL applies the maximum and then the minimum: the minimum wins.",
        "NCCL src/graph/paths.cc, ncclTopoComputeP2pChannels",
    ),
    _above(
        "NCCL_MIN_CTAS",
        "NCCL_MAX_CTAS",
        "NCCL sets both to the maximum (before 2.19 it failed).",
        "NCCL src/init.cc, envConfigOverride",
    ),
    _sockets,
    _mnnvl,
    _blocking,
    _only_network,
)

#: Both names are read, and of two different values the first one's counts. TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC is left
#: out: beside it nccl2 reads the older name too, for how long it waits before it aborts (torch 2.15 libtorch_cuda.so,
#: nccl2::ProcessGroupNCCL::abortProcess).
TWO_NAMES: Mapping[str, str] = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_BLOCKING_WAIT": "NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_DESYNC_DEBUG": "NCCL_DESYNC_DEBUG",
    "TORCH_NCCL_ENABLE_TIMING": "NCCL_ENABLE_TIMING",
    "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    "TORCH_FR_BUFFER_SIZE": "TORCH_NCCL_TRACE_BUFFER_SIZE",
    "TORCH_FR_CPP_STACK": "TORCH_NCCL_TRACE_CPP_STACK",
    "TORCH_FR_DUMP_ON_TIMEOUT": "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "NCCL_MIN_NCHANNELS": "NCCL_MIN_NRINGS",
    "NCCL_MAX_NCHANNELS": "NCCL_MAX_NRINGS",
}


def disagreeing(env: Env, installed: Installed) -> dict[str, str]:
    """The old names in an environment that sets the new one otherwise, each with the new name, where that is read."""
    return {
        old: new
        for new, old in TWO_NAMES.items()
        if env.get(new) and env.get(old) and effective(new, env[new]) != effective(new, env[old])
        if installed.reads(new)
        and (installed.backend or variables()[new].backend == variables()[old].backend)
    }
