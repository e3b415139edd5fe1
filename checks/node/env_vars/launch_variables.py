"""The variables with which a launcher tells a process its place in the world, and how they can disagree.

    torchrun     RANK=3 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 MASTER_ADDR=n0 MASTER_PORT=41613
                 GROUP_RANK=0 ROLE_RANK=3 TORCHELASTIC_RUN_ID=9e696fd8 TORCHELASTIC_USE_AGENT_STORE=True …
    SLURM step   SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_LOCALID=1 (torch reads none: the job script maps them)
    Open MPI     OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1

Sources: torch 2.13 torch/distributed/elastic/agent/server/local_elastic_agent.py (_start_workers),
torch/distributed/rendezvous.py (_env_rendezvous_handler); what each fault does was tried with torch 2.13 and
gloo: a rank outside the world, or another than 0 alone, waits for the store until its time-out.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddp_doctor.knowledge.launchers import Launcher
from ddp_doctor.settings.wording import printable, shown

#: What init_process_group("env://") reads.
RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: What every worker of torchrun has.
TORCHRUN_WORKER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: What makes a process take itself for one rank of a world.
IDENTITY = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_USE_AGENT_STORE")
#: Job scripts export these beforehand, for their own arithmetic.
SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
NUMBERS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", *SIZES, "MASTER_PORT")


#: torchrun's options that decide where and with whom it meets, by their variable.
REDIRECTING = (
    "PET_NNODES",
    "PET_NODE_RANK",
    "PET_RDZV_BACKEND",
    "PET_RDZV_ENDPOINT",
    "PET_RDZV_ID",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_STANDALONE",
)


@dataclass(frozen=True)
class Fault:
    """Something wrong with launch variables; ``fatal`` where ``env://`` cannot work with them."""

    names: tuple[str, ...]
    text: str
    fatal: bool = False


def missing(env: Mapping[str, str], launcher: Launcher | None) -> tuple[str, ...]:
    """The variables that must be set beside those that are; torch takes an empty one for unset."""
    needed = TORCHRUN_WORKER if launcher == "torchrun" else RENDEZVOUS if env.get("RANK") else ()
    return tuple(name for name in needed if not env.get(name))


def faults(env: Mapping[str, str], launcher: Launcher | None) -> Iterator[Fault]:
    """What cannot be true of the launch variables that are set."""
    numbers = {name: number for name in NUMBERS if (number := _number(env.get(name))) is not None}
    for name in NUMBERS:
        if env.get(name) and name not in numbers:
            yield Fault((name,), f"{shown(name, env[name])} is no number", fatal=name in RENDEZVOUS)
    yield from _ranks(numbers)
    yield from _sizes(numbers, launcher)
    yield from _meeting_point(env, numbers, launcher)
    own = {"slurm": "SLURM_PROCID", "mpi": "OMPI_COMM_WORLD_RANK"}.get(launcher or "")
    if own and "RANK" in numbers and numbers["RANK"] != _number(env.get(own)):
        text = f"RANK is {numbers['RANK']}, but the launcher set {shown(own, env.get(own, ''))}"
        yield Fault(("RANK",), text)


def _number(value: str | None) -> int | None:
    # ASCII: int() does not take all that \s takes for white space otherwise, U+001F for one.
    return int(value) if value and re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", value, re.ASCII) else None


def _ranks(numbers: Mapping[str, int]) -> Iterator[Fault]:
    for rank in ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"):
        size = "WORLD_SIZE" if rank == "RANK" else rank.replace("RANK", "WORLD_SIZE")
        fatal = rank == "RANK"
        if rank in numbers and numbers[rank] < 0:
            yield Fault((rank,), f"{rank}={numbers[rank]} is not possible: ranks count from 0", fatal)
        elif rank in numbers and size in numbers and numbers[rank] >= max(numbers[size], 1):
            last = f"the last is {numbers[size] - 1}"
            text = f"{rank}={numbers[rank]} is not possible with {size}={numbers[size]}: {last}"
            yield Fault((rank, size), text, fatal)


def _sizes(numbers: Mapping[str, int], launcher: Launcher | None) -> Iterator[Fault]:
    for size in SIZES:
        if size in numbers and numbers[size] < 1:
            yield Fault((size,), f"{size}={numbers[size]} is not possible: it is at least 1", size == "WORLD_SIZE")
    world, local = numbers.get("WORLD_SIZE", 1), numbers.get("LOCAL_WORLD_SIZE", 1)
    if launcher == "torchrun":  # counts the workers itself, and nodes may have different numbers of them
        return
    if "WORLD_SIZE" in numbers and world >= 1 and local > 1 and world % local:
        text = f"WORLD_SIZE={world} is no multiple of LOCAL_WORLD_SIZE={local}"
        yield Fault(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), text)


def _meeting_point(env: Mapping[str, str], numbers: Mapping[str, int], launcher: Launcher | None) -> Iterator[Fault]:
    port, address = numbers.get("MASTER_PORT"), env.get("MASTER_ADDR", "").strip()
    if port is not None and not 0 <= port <= 65535:
        yield Fault(("MASTER_PORT",), f"MASTER_PORT={port} is not possible: ports end at 65535", fatal=True)
    if port == 0 and numbers.get("WORLD_SIZE", 1) > 1:
        text = "MASTER_PORT=0 lets each rank pick a port of its own"
        yield Fault(("MASTER_PORT",), text, fatal=True)
    if "/" in address or re.fullmatch(r"[^:]+:[0-9]+", address):
        text = f"{shown('MASTER_ADDR', address)} is not a bare host name or address"
        yield Fault(("MASTER_ADDR",), text, fatal=True)
    elif is_loopback(address) and (nodes := _nodes(env, numbers, launcher)) > 1:
        text = f"MASTER_ADDR={address} means every node itself, but the job has {nodes} nodes"
        yield Fault(("MASTER_ADDR",), text)


def is_loopback(address: str) -> bool:
    """Whether an address means each host itself."""
    return re.fullmatch(r"localhost(\.localdomain)?|::1|127(\.[0-9]+)+", address) is not None


def _nodes(env: Mapping[str, str], numbers: Mapping[str, int], launcher: Launcher | None) -> int:
    """How many nodes the job has, as far as its launcher says; 1 where nothing says so."""
    if launcher == "slurm":
        return _number(env.get("SLURM_STEP_NUM_NODES") or env.get("SLURM_NNODES")) or 1
    if "GROUP_WORLD_SIZE" in numbers:
        return numbers["GROUP_WORLD_SIZE"]
    local = numbers.get("LOCAL_WORLD_SIZE", 0)
    return numbers.get("WORLD_SIZE", 1) // local if local > 0 else 1


def leftovers(env: Mapping[str, str], *, in_job: bool) -> tuple[str, ...]:
    """The variables that make a process without a launcher take itself for one rank of a world.

    ``in_job`` is the shell of a batch job or pod, whose script exports sizes for its own arithmetic.
    """
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "False":
        env = {name: value for name, value in env.items() if name != "TORCHELASTIC_USE_AGENT_STORE"}
    return tuple(name for name in (*IDENTITY, *(() if in_job else SIZES)) if env.get(name))


def is_alone(env: Mapping[str, str]) -> bool:
    """Whether the variables describe a world of this process alone, which needs nobody else."""
    if any(env.get(name, "1") != "1" for name in SIZES):
        return False
    if env.get("RANK"):
        return env["RANK"] == "0" and not missing(env, None)
    return not any(env.get(name) for name in IDENTITY)


def consequence(env: Mapping[str, str]) -> str:
    """What a script that is started by hand in this environment would do."""
    rank, lacking = env.get("RANK"), missing(env, None)
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "init_process_group() looks for a store that torchrun alone starts, and waits until its time-out."
    if is_alone(env):
        return "They describe a job of one rank, which needs no other."
    if not rank:
        return "A script that reads them takes itself for one rank of a larger job."
    rank = printable(rank)
    if lacking:
        unset = ", ".join(lacking)
        return f"A script started here takes itself for rank {rank}, and init_process_group() fails without {unset}."
    fault = next((fault.text for fault in faults(env, None) if fault.fatal), None)
    if fault:
        return f"init_process_group() fails: {fault}."
    size, address, port = (printable(env[name]) for name in RENDEZVOUS[1:])
    return f"A script started here joins as rank {rank} of {size} at {address}:{port} and waits for the others."


def visible(devices: str) -> int:
    """How many GPUs a CUDA_VISIBLE_DEVICES shows at most: its entries up to the one that ends it."""
    entries = [entry.strip().lower() for entry in devices.split(",")]
    ends = [at for at, entry in enumerate(entries) if entry in ("", "-1", "none", "void", "nodevfiles")]
    return min(ends, default=len(entries))
