"""DD101-DD104, DD108: launch variables that are left over, incomplete, contradict each other, or mislead torch.

A launcher uses these variables to give a process its place in the job:

    torchrun     RANK=3 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 MASTER_ADDR=n0 MASTER_PORT=41613
                 GROUP_RANK=0 ROLE_RANK=3 TORCHELASTIC_RUN_ID=9e696fd8 TORCHELASTIC_USE_AGENT_STORE=True …
    SLURM step   SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_LOCALID=1 (torch reads none: the job script maps them)
    Open MPI     OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1

Sources: torch 2.13 torch/distributed/elastic/agent/server/local_elastic_agent.py (_start_workers),
torch/distributed/rendezvous.py (_env_rendezvous_handler). The effect of each fault was tested with torch 2.13 and gloo:
a rank outside the world, or a rank other than 0 without peers, waits for the store until its timeout.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddp_doctor.checks.node.env_vars.in_force import InForce, rule_of_nodes, setting_draft
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge.launchers import Launcher
from ddp_doctor.knowledge.network.addresses import is_own_host
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.parse.visible_devices import DELIBERATE_ENDS
from ddp_doctor.remedies.kinds import in_job_script, unset
from ddp_doctor.settings.table import variables
from ddp_doctor.settings.wording import listed, printable, shown

#: The variables that init_process_group("env://") reads.
RENDEZVOUS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: The variables of every torchrun worker.
TORCHRUN_WORKER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: The variables that make a process act as a rank of a larger job.
IDENTITY = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "TORCHELASTIC_USE_AGENT_STORE")
#: Job scripts export these beforehand, for their own arithmetic.
SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
NUMBERS = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", *SIZES, "MASTER_PORT")


#: torchrun's options for the rendezvous, by their variable.
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
    """A fault of launch variables; ``fatal`` if ``env://`` cannot work with them."""

    names: tuple[str, ...]
    text: str
    fatal: bool = False


def missing(env: Mapping[str, str], launcher: Launcher | None) -> tuple[str, ...]:
    """Return the required variables that are missing; torch treats an empty variable as unset."""
    needed = TORCHRUN_WORKER if launcher == "torchrun" else RENDEZVOUS if env.get("RANK") else ()
    return tuple(name for name in needed if not env.get(name))


def faults(env: Mapping[str, str], launcher: Launcher | None) -> Iterator[Fault]:
    """Yield the contradictions between the launch variables."""
    numbers = {name: number for name in NUMBERS if (number := _number(env.get(name))) is not None}
    for name in NUMBERS:
        if env.get(name) and name not in numbers:
            yield Fault((name,), f"{shown(name, env[name])} is not a number", fatal=name in RENDEZVOUS)
    for rank in ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"):
        size = "WORLD_SIZE" if rank == "RANK" else rank.replace("RANK", "WORLD_SIZE")
        is_fatal = rank == "RANK"
        if rank in numbers and numbers[rank] < 0:
            yield Fault((rank,), f"{rank}={numbers[rank]} is out of range: ranks start at 0", is_fatal)
        elif rank in numbers and size in numbers and numbers[rank] >= max(numbers[size], 1):
            last = f"the last rank is {numbers[size] - 1}"
            fault_text = f"{rank}={numbers[rank]} is out of range with {size}={numbers[size]}: {last}"
            yield Fault((rank, size), fault_text, is_fatal)
    yield from _sizes(numbers, launcher)
    yield from _meeting_point(env, numbers, launcher)
    own, _ = _PLACES.get(launcher, ("", ""))
    if own and "RANK" in numbers and numbers["RANK"] != _number(env.get(own)):
        text = f"RANK is {numbers['RANK']}, but the launcher set {shown(own, env.get(own, ''))}"
        yield Fault(("RANK",), text)


def _number(value: str | None) -> int | None:
    # ASCII: otherwise \s matches characters that int() does not accept as white space, such as U+001F.
    return int(value) if value and re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", value, re.ASCII) else None


def _sizes(numbers: Mapping[str, int], launcher: Launcher | None) -> Iterator[Fault]:
    for size in SIZES:
        if size in numbers and numbers[size] < 1:
            yield Fault((size,), f"{size}={numbers[size]} is out of range: the minimum is 1", size == "WORLD_SIZE")
    world, local = numbers.get("WORLD_SIZE", 1), numbers.get("LOCAL_WORLD_SIZE", 1)
    if launcher == "torchrun":  # it counts its workers itself, and nodes may have different numbers
        return
    if "WORLD_SIZE" in numbers and world >= 1 and local > 1 and world % local:
        text = f"WORLD_SIZE={world} is not a multiple of LOCAL_WORLD_SIZE={local}"
        yield Fault(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), text)


def _meeting_point(env: Mapping[str, str], numbers: Mapping[str, int], launcher: Launcher | None) -> Iterator[Fault]:
    port, address = numbers.get("MASTER_PORT"), env.get("MASTER_ADDR", "").strip()
    if port is not None and not 0 <= port <= 65535:
        yield Fault(("MASTER_PORT",), f"MASTER_PORT={port} is out of range: the maximum is 65535", fatal=True)
    if port == 0 and numbers.get("WORLD_SIZE", 1) > 1:
        text = "MASTER_PORT=0 lets each rank choose a different port"
        yield Fault(("MASTER_PORT",), text, fatal=True)
    if "/" in address or re.fullmatch(r"[^:]+:[0-9]+", address):
        text = f"{shown('MASTER_ADDR', address)} is not a bare host name or address"
        yield Fault(("MASTER_ADDR",), text, fatal=True)
    elif is_own_host(address) and (nodes := _nodes(env, numbers, launcher)) > 1:
        text = f"MASTER_ADDR={address} is a different machine on each node, but the job has {nodes} nodes"
        yield Fault(("MASTER_ADDR",), text)


def _nodes(env: Mapping[str, str], numbers: Mapping[str, int], launcher: Launcher | None) -> int:
    """Return the number of nodes according to the launcher, or 1 if unknown."""
    if launcher == "slurm":
        return _number(env.get("SLURM_STEP_NUM_NODES") or env.get("SLURM_NNODES")) or 1
    if "GROUP_WORLD_SIZE" in numbers:
        return numbers["GROUP_WORLD_SIZE"]
    local = numbers.get("LOCAL_WORLD_SIZE", 0)
    return numbers.get("WORLD_SIZE", 1) // local if local > 0 else 1


def leftovers(env: Mapping[str, str], *, in_job: bool) -> tuple[str, ...]:
    """Return the variables that make a process without a launcher act as a rank of a larger job.

    ``in_job`` is the shell of a batch job or pod, whose script exports sizes for its own arithmetic.
    """
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "False":
        env = {name: value for name, value in env.items() if name != "TORCHELASTIC_USE_AGENT_STORE"}
    return tuple(name for name in (*IDENTITY, *(() if in_job else SIZES)) if env.get(name))


def is_alone(env: Mapping[str, str]) -> bool:
    """Return True if the variables describe a job of only this process."""
    if any(env.get(name, "1") != "1" for name in SIZES):
        return False
    if env.get("RANK"):
        return env["RANK"] == "0" and not missing(env, None)
    return not any(env.get(name) for name in IDENTITY)


def consequence(env: Mapping[str, str]) -> str:
    """Return the effect on a script started by hand in this environment."""
    rank, lacking = env.get("RANK"), missing(env, None)
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "init_process_group() looks for a store that only torchrun starts, and waits until its timeout."
    if is_alone(env):
        return "They describe a job with a single rank."
    if not rank:
        return "A script that reads them acts as one rank of a larger job."
    rank = printable(rank)
    if lacking:
        unset = ", ".join(lacking)
        return f"A script started here acts as rank {rank}, and init_process_group() fails without {unset}."
    fault = next((fault.text for fault in faults(env, None) if fault.fatal), None)
    if fault:
        return f"init_process_group() fails: {fault}."
    size, address, port = (printable(env[name]) for name in RENDEZVOUS[1:])
    return f"A script started here joins as rank {rank} of {size} at {address}:{port} and waits for the other ranks."


def gpus_shown(devices: str) -> int:
    """Return the maximum number of GPUs in CUDA_VISIBLE_DEVICES: the entries before the terminating one."""
    entries = [entry.strip().lower() for entry in devices.split(",")]
    ends = [at for at, entry in enumerate(entries) if entry in DELIBERATE_ENDS]
    return min(ends, default=len(entries))


_LAUNCHERS = "neither torchrun nor srun nor mpirun"
_NO_LAUNCHER = "the environment has no TORCHELASTIC_RUN_ID, SLURM step or Open MPI rank"
_STARTED_BY: dict[Launcher | None, str] = {
    "torchrun": "torchrun started this process (TORCHELASTIC_RUN_ID)",
    "slurm": "srun started this process (SLURM_STEP_ID and SLURM_PROCID)",
    "mpi": "mpirun started this process (OMPI_COMM_WORLD_RANK)",
    None: "torch/distributed/rendezvous.py reads them",
}
#: Variables of other launchers for the rank of a process, in the job and on its node.
_PLACES: dict[Launcher | None, tuple[str, str]] = {
    "slurm": ("SLURM_PROCID", "SLURM_LOCALID"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
}
_PER_TASK = "Start the ranks with torchrun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in each task"
_MEETING = "Set MASTER_ADDR to a name of node 0 that all nodes resolve, and MASTER_PORT to a free port, for all ranks"


@rule_of_nodes("DD101", "leftover-launch-variables", Consequence.RISK)
def leftover_launch_variables(node: InForce) -> Iterator[Draft]:
    """Variables of a launcher are set in a process that no launcher started.

    Finds: RANK, LOCAL_RANK, WORLD_SIZE and similar variables. Information if they describe a world of one.
    Why: A script started directly uses them and fails, or waits for ranks that never start. torchrun sets its
        workers' own values; srun and mpirun pass the leftovers to every task.
    Remedy: Unset them, unless you start each rank manually or with another launcher.
    See: torch/distributed/rendezvous.py, _env_rendezvous_handler
    """
    fact = node.seen.fact
    env, complete = fact.variables, all(fact.variables.get(name) for name in RENDEZVOUS)
    if fact.is_written or fact.launcher is not None:
        return
    if fact.in_kubernetes and complete:  # a training operator sets all of them
        return
    names = leftovers(env, in_job=fact.in_kubernetes or "SLURM_JOB_ID" in env)
    pairs = {name: env[name] for name in names}
    if pairs:
        yield setting_draft(
            pairs,
            f"{listed(pairs)} {'is' if len(pairs) == 1 else 'are'} set without a launcher:"
            f" {_LAUNCHERS} started this process",
            listed(pairs),
            _NO_LAUNCHER,
            unset(pairs, "left over from another launch"),
            detail=f"{consequence(env)} torchrun is not affected: it sets its own values.",
            severity=Severity.INFO if is_alone(env) else None,
            confidence=Confidence.LIKELY,
        )


@rule_of_nodes("DD102", "launch-variables-inconsistent", Consequence.RISK)
def launch_variables_inconsistent(node: InForce) -> Iterator[Draft]:
    """Launch variables are incomplete or contradict each other.

    Finds: RANK without WORLD_SIZE, MASTER_ADDR or MASTER_PORT; a rank outside its world; text instead of a number;
        an impossible port or address; a loopback MASTER_ADDR in a job of several nodes; a RANK that differs from
        the task's own. An error if init_process_group("env://") must fail.
    Why: The rank fails at once, or waits for the store until its timeout, and its peers wait with it.
    Remedy: Let torchrun set them, or set all of them for each task from the launcher's own variables.
    See: https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
    """
    fact = node.seen.fact
    env, launcher = fact.variables, fact.launcher
    in_world = launcher is not None or fact.in_kubernetes
    lacking = missing(env, launcher) if in_world else ()
    if lacking:
        known = "TORCHELASTIC_RUN_ID" if launcher == "torchrun" else "RANK"
        text = f"{shown(known, env.get(known, ''))} is set, but not {', '.join(lacking)}"
        yield _inconsistent(env, Fault(lacking, text), launcher, None)
    sure = in_world and not lacking and bool(env.get("RANK"))
    for fault in faults(env, launcher):
        # Without a launcher, ranks and sizes are leftovers, which are reported with their faults.
        if in_world or set(fault.names) <= {"MASTER_ADDR", "MASTER_PORT"}:
            severity = Severity.ERROR if fault.fatal and sure else None
            yield _inconsistent(env, fault, launcher, severity)


def _inconsistent(env: Mapping[str, str], fault: Fault, launcher: Launcher | None, severity: Severity | None) -> Draft:
    signs = ("TORCHELASTIC_RUN_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
    saw = {name: env[name] for name in dict.fromkeys((*fault.names, *RENDEZVOUS, *signs)) if name in env}
    return setting_draft(
        fault.names,
        fault.text,
        listed(saw),
        _STARTED_BY[launcher],
        in_job_script(_MEETING if set(fault.names) <= {"MASTER_ADDR", "MASTER_PORT"} else _PER_TASK),
        detail="init_process_group() reads them and fails, or waits for the other ranks without success.",
        severity=severity,
    )


@rule_of_nodes("DD103", "local-rank-beyond-visible-gpus", Consequence.RISK)
def local_rank_beyond_visible_gpus(node: InForce) -> Iterator[Draft]:
    """The node has more ranks than CUDA_VISIBLE_DEVICES shows GPUs.

    Finds: A LOCAL_RANK or LOCAL_WORLD_SIZE above its length. An empty list (the CPU) and one GPU per task are
        allowed.
    Why: torch.cuda.set_device(LOCAL_RANK) fails with "invalid device ordinal", or ranks share a GPU.
    Remedy: Start one rank per visible GPU, or list more; with one GPU per task, use device 0.
    See: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars
    """
    fact = node.seen.fact
    env = fact.variables
    count = gpus_shown(env.get("CUDA_VISIBLE_DEVICES", ""))
    needed = {"LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 0}  # the number to add to get the number of GPUs
    if count == 1:  # each task may have its own GPU
        del needed["LOCAL_WORLD_SIZE"]
    for name, more in needed.items():
        value = env.get(name, "")
        if fact.launcher and count and value.isdecimal() and int(value) + more > count:
            pairs = {name: value, "CUDA_VISIBLE_DEVICES": env["CUDA_VISIBLE_DEVICES"]}
            yield setting_draft(
                pairs,
                f"{shown(name, value)} needs {int(value) + more} GPUs, but CUDA_VISIBLE_DEVICES has {count}",
                listed(pairs),
                "torch.cuda.set_device(LOCAL_RANK) counts the visible GPUs",
                in_job_script(
                    "Start one rank per visible GPU or list more GPUs; use device 0 if each task has one GPU"
                ),
                detail='Ranks fail with "invalid device ordinal", unless they share a GPU or use the CPU.',
                confidence=Confidence.LIKELY,
            )
            return


@rule_of_nodes("DD104", "torchrun-options-left-behind", Consequence.RISK)
def torchrun_options_left_behind(node: InForce) -> Iterator[Draft]:
    """A plain shell has PET_* variables, which torchrun reads as options.

    Finds: PET_NNODES, PET_RDZV_ENDPOINT and similar variables outside a batch job, a pod and a launcher's world.
    Why: Unless the command line overrides them, torchrun waits for their nodes or uses their endpoint.
    Remedy: Unset them, or put the options on the command line.
    See: torch/distributed/argparse_util.py
    """
    fact = node.seen.fact
    env = fact.variables
    defaults = {name: {variables()[name].default, ""} for name in REDIRECTING}
    pairs = {name: env[name] for name in defaults if env.get(name, "") not in defaults[name]}
    if fact.is_written:
        return
    if pairs and fact.launcher is None and not fact.in_kubernetes and "SLURM_JOB_ID" not in env:
        title = f"torchrun takes options from environment variables unless its command line sets them: {listed(pairs)}"
        detail = (
            "If they are left over from another job, torchrun waits for nodes that"
            " never join, or uses another endpoint."
        )
        remedy = unset(pairs, "a torchrun option")
        source, sure = "torch/distributed/argparse_util.py", Confidence.LIKELY
        yield setting_draft(pairs, title, listed(pairs), source, remedy, detail=detail, confidence=sure)


@rule_of_nodes("DD108", "group-takes-another-gpu-than-the-rank", Consequence.RISK)
def group_takes_another_gpu_than_the_rank(node: InForce) -> Iterator[Draft]:
    """A rank's NCCL group would use a different GPU than its place on the node implies.

    Finds: Ranks that srun or mpirun started, with a torch whose "nccl" is the backend nccl2, if LOCAL_RANK (or if
        unset, the rank in the entire job) modulo the number of visible GPUs is not the rank's number on its node.
        Not reported under torchrun, which sets LOCAL_RANK, or if each task sees one GPU.
    Why: nccl2 (torch 2.15 and newer) connects inside init_process_group and ignores torch.cuda.set_device(). A
        script that chooses its GPU only by SLURM_LOCALID then fails with "ProcessGroupNCCL is bound to device
        cuda:1 but an operation was issued on cuda:0", or with "Duplicate GPU detected".
    Remedy: Pass device_id to init_process_group, or set LOCAL_RANK from the launcher's own number.
    See: torch 2.15 torch/distributed/distributed_c10d.py, _nccl2_device
    """
    software = node.recording.at(Software, node.seen.node)
    by_local_rank = any(fact.torch_nccl2_takes_local_rank for fact in software)
    env, launcher = node.env, node.seen.fact.launcher
    uses_nccl2 = node.backend == "nccl" and node.installed.backend == "nccl2"
    if launcher not in _PLACES or not (uses_nccl2 and by_local_rank):
        return
    in_job, on_node = _PLACES[launcher]
    hides = "CUDA_VISIBLE_DEVICES" in env
    visible = gpus_shown(env["CUDA_VISIBLE_DEVICES"]) if hides else node.hardware.gpus
    rank, local_rank = env.get("RANK") or env.get(in_job, ""), env.get(on_node, "")
    taken = env.get("LOCAL_RANK", rank)
    if not visible or not (taken.isdecimal() and local_rank.isdecimal()):
        return
    group_gpu, own_gpu = int(taken) % visible, int(local_rank) % visible
    if group_gpu == own_gpu:
        return
    chosen_by = "LOCAL_RANK" if "LOCAL_RANK" in env else "RANK" if env.get("RANK") else in_job
    pairs = {name: env[name] for name in (chosen_by, on_node)}
    yield setting_draft(
        pairs,
        f"NCCL uses GPU {group_gpu} for local rank {local_rank}, not GPU {own_gpu}: torch selects {chosen_by} modulo"
        f" the number of visible GPUs ({taken} % {visible})",
        listed(pairs),
        "torch 2.15 torch/distributed/distributed_c10d.py, _nccl2_device",
        in_job_script(
            f"Pass device_id to init_process_group, or set LOCAL_RANK in each task: export LOCAL_RANK=${on_node}"
        ),
        detail="torch.cuda.set_device() does not change this with the backend nccl2. A script that passes device_id or"
        " sets LOCAL_RANK itself is not affected.",
        confidence=Confidence.POSSIBLE,
    )
