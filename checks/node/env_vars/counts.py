"""DD127, DD128: what a job script asks for, held against its own settings and its own commands."""

from collections.abc import Iterator
from typing import NamedTuple

from ddp_doctor.checks.node.env_vars.in_force import setting_draft
from ddp_doctor.checks.node.env_vars.launch import is_loopback
from ddp_doctor.facts.node.env_vars import Launch, SettingText
from ddp_doctor.knowledge.network.interface_choice import GLOO_IFNAME, NCCL_IFNAME
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import in_job_script, unset
from ddp_doctor.settings.wording import shown
from ddp_doctor.wording.findings import finding

#: Interfaces that lead to no other host; NCCL takes names as beginnings of names, with = as they are.
_LOOPBACK = ("lo", "=lo", "lo0")
_ENDPOINT = "--rdzv-endpoint"
_FIRST_NODE = 'Give the name of the first node: $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_ONE_EACH = "Start one torchrun on each node (--ntasks-per-node=1), with as many ranks as GPUs and the job's --nnodes"
_BY_TASK = "Start as many tasks on a node as it gives GPUs to the job"
_SRUN = "man srun: one task a node, unless the options or those of the job say otherwise"
_TORCHRUN = "torch/distributed/run.py: each torchrun is one of --nnodes, and starts --nproc-per-node ranks"


@rule("DD127", "loopback-between-nodes", Consequence.FAILS, SettingText)
def loopback_between_nodes(recording: Recording) -> Iterator[Draft]:
    """A job script for several nodes sends the ranks to the loopback interface.

    Finds: NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME that is lo, MASTER_ADDR, --master-addr or --rdzv-endpoint that is
        localhost, where ranks start, and the script asks for at least two nodes: by #SBATCH, srun or torchrun's
        --nnodes. Silent where the nodes may be one (--nodes=1-4), where torchrun stands alone on a node, and of a value
        that another one overwrites before the ranks start or that depends on the branch.
    Why: Each node then looks for the others on itself: the ranks hang in init_process_group, or refuse to connect.
        With NCCL_SOCKET_IFNAME, init_process_group or the first collective fails.
    Remedy: Unset the interface, or name one that reaches the other nodes; give the first node's name as the address.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    text = recording.first(SettingText)
    if text is not None:
        found = dict(_of_job(text)) if not text.launches else {}
        for launch in text.launches:
            found = dict(_of_launch(text, launch)) | found
        for name, lost in found.items():
            by_option = name == _ENDPOINT
            lines = [each.line for each in text.written if (each.name, each.value) == (name, lost.value)]
            pair = f"rendezvous endpoint {lost.value}" if by_option else shown(name, lost.value)
            where = f"line {lost.launch.line} starts ranks" if lost.launch else "the lines for SLURM ask for them"
            by_name = by_option or name == "MASTER_ADDR"
            fails = "or the first collective fails" if name == NCCL_IFNAME else "fails or hangs"
            yield setting_draft(
                [name],
                f"{pair} reaches no other node, but the job has {lost.nodes} nodes",
                f"{pair}{f' in line {lines[-1]}' if lines else ''}; {lost.nodes} nodes: {where}",
                "a loopback interface reaches only its own host",
                in_job_script(_FIRST_NODE) if by_name else unset({name: lost.value}, "it reaches no other node"),
                detail=f"Each rank looks for the other ranks on its own node, so init_process_group() {fails}.",
            )


class _Lost(NamedTuple):
    """A value that leads to no other node."""

    value: str
    nodes: int
    launch: Launch | None  # the ranks that have it


def _of_launch(text: SettingText, launch: Launch) -> Iterator[tuple[str, _Lost]]:
    nodes = _nodes_of_launch(text.job, launch)
    if nodes is None or nodes[0] < 2:
        return
    host, colon, port = launch.endpoint.rpartition(":")
    if is_loopback((host if colon and port.isdecimal() else launch.endpoint).strip("[]")):
        yield _ENDPOINT, _Lost(launch.endpoint, nodes[0], launch)
    for name, value in launch.environment.items():
        if _is_own_host(name, value) and not (name == "MASTER_ADDR" and launch.starts == "torchrun"):
            yield name, _Lost(value, nodes[0], launch)


def _of_job(text: SettingText) -> Iterator[tuple[str, _Lost]]:
    """Of a script that starts its ranks in a way that is not known here."""
    nodes = text.job.nodes if text.job else None
    if nodes is None or nodes[0] < 2:
        return
    possible = text.possible()
    for name, written in text.in_force().items():
        is_sure = written.depends_on is None and len({each.value for each in possible.get(name, ())}) == 1
        if written.value and is_sure and _is_own_host(name, written.value):
            yield name, _Lost(written.value, nodes[0], None)


def _is_own_host(name: str, value: str) -> bool:
    if name == "MASTER_ADDR":
        return is_loopback(value.strip())
    return name in (NCCL_IFNAME, GLOO_IFNAME) and value.strip() in _LOOPBACK


def _nodes_of_launch(job: Launch | None, launch: Launch) -> tuple[int, int] | None:
    if launch.starts == "torchrun" and (launch.agents or not launch.endpoint):
        return launch.agents or (1, 1)
    if launch.tasks == 1 or launch.program == "torchrun":
        return (1, 1)
    if launch.program == "mpirun" and launch.tasks and launch.tasks_per_node:
        count = -(-launch.tasks // launch.tasks_per_node)
        return (count, count)
    return launch.nodes or (job.nodes if job and launch.program == "srun" else None)


@rule("DD128", "counts-of-a-script-disagree", Consequence.FAILS, SettingText)
def counts_of_a_script_disagree(recording: Recording) -> Iterator[Draft]:
    """A job script starts more ranks on a node, or another number of torchruns, than it says elsewhere.

    Finds: Tasks of a node times torchrun's --nproc-per-node above the GPUs that are asked for; more torchruns than
        --nnodes, or fewer than it waits for. A warning where srun starts more tasks than GPUs, and where several
        torchruns of several ranks start on each node and nothing says how many GPUs or nodes there are. Silent where a
        number is a variable that only SLURM knows, where the nodes are a range, and where each torchrun is told its
        node rank.
    Why: Ranks share a GPU, which NCCL refuses ("Duplicate GPU detected"), or fail with "invalid device ordinal".
        Torchruns that are too many are turned away, and for those that are missing the others wait.
    Remedy: One task on each node that starts torchrun, as many ranks as GPUs, and --nnodes as the job's nodes.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    text = recording.first(SettingText)
    for launch in text.launches if text else ():
        fault = (
            _other_number_of_torchruns(text.job, launch) or _more_ranks_than_gpus(text.job, launch) if text else None
        )
        if fault is not None:
            by_torchrun = launch.starts == "torchrun"
            yield finding(
                [Culprit(kind="setting", name="torchrun" if by_torchrun else "srun")],
                fault.title,
                Evidence(text=f"line {launch.line}: {fault.why}", expected_from=_TORCHRUN if by_torchrun else _SRUN),
                in_job_script(_ONE_EACH if by_torchrun else _BY_TASK),
                confidence=Confidence.LIKELY,
                severity=fault.severity,
            )


class _Fault(NamedTuple):
    title: str
    why: str
    severity: Severity | None = None


def _other_number_of_torchruns(job: Launch | None, launch: Launch) -> _Fault | None:
    if launch.starts != "torchrun" or launch.agents is None or launch.node_rank:
        return None
    fewest, most = launch.agents
    nodes, each = _exact(job, launch), _tasks_of_a_node(job, launch)
    if launch.program == "torchrun":  # no srun starts one on each node: other commands may start the others
        if job is None or job.nodes is None or fewest <= job.nodes[1] or launch.path:
            return None
        why = f"--nnodes {fewest}; line {job.line}: {job.nodes[1]} nodes"
        return _Fault(f"torchrun waits for {fewest} nodes, but the job has {job.nodes[1]}", why)
    if nodes is None or each is None:
        return None
    count = nodes * each
    expected = f"{fewest}:{most}" if most > fewest else f"{most}"
    why = f"{f'{each} tasks on each of ' * (each > 1)}{nodes} nodes, --nnodes {expected}"
    is_whole = job is not None and job.nodes == (nodes, nodes) and not launch.path
    if count <= most and not (count < fewest and is_whole):
        return None
    needs = f"takes {most}" if count > most else f"waits for {fewest}"
    return _Fault(f"{count} torchruns start, but --nnodes={expected} {needs}", why)


def _more_ranks_than_gpus(job: Launch | None, launch: Launch) -> _Fault | None:
    by_torchrun = launch.starts == "torchrun"
    each = 1 if launch.program == "torchrun" else _tasks_of_a_node(job, launch)
    inside = launch.ranks_per_task if by_torchrun else 1
    if each is None or inside is None or launch.starts not in ("torchrun", "python"):
        return None
    gpus, ranks = _gpus_of_a_node(job, launch, each), each * inside
    made = f"{each} tasks of {inside} ranks" if each > 1 and by_torchrun else f"{ranks} of them"
    if gpus and ranks > gpus and (by_torchrun or "MASTER_ADDR" in launch.environment):
        title = f"{ranks} ranks start on each node, but the job requests {gpus} GPU{'s' * (gpus > 1)} per node"
        return _Fault(title, f"{made} on a node, {gpus} GPUs", None if by_torchrun else Severity.WARNING)
    if gpus is None and each > 1 and inside > 1 and launch.agents is None:
        why = f"{made} on a node, each torchrun a job of its own"
        return _Fault(f"{ranks} ranks start on each node: {made}", why, Severity.WARNING)
    return None


def _exact(job: Launch | None, launch: Launch) -> int | None:
    nodes = launch.nodes or (job.nodes if job else None)
    return nodes[0] if nodes and nodes[0] == nodes[1] else None


def _tasks_of_a_node(job: Launch | None, launch: Launch) -> int | None:
    """The tasks that srun or mpirun starts on each node; None where that is open."""
    if launch.program == "mpirun":
        return launch.tasks_per_node
    nodes = _exact(job, launch)
    tasks = launch.tasks or (job.tasks if job and launch.nodes is None and launch.tasks_per_node is None else None)
    if tasks:
        return tasks // nodes if nodes and tasks % nodes == 0 else 1 if tasks == 1 else None
    if launch.tasks_per_node:
        return launch.tasks_per_node
    if job is None:
        return None
    return job.tasks_per_node or (1 if nodes and job.gpus_per_task is None else None)


def _gpus_of_a_node(job: Launch | None, launch: Launch, each: int | None) -> int | None:
    for asked in (launch, job):
        if asked is None:
            continue
        if asked.gpus_per_node:
            return asked.gpus_per_node
        if asked.gpus_per_task and each:
            return asked.gpus_per_task * each
        nodes = asked.nodes or (1, 1) if asked is job else None
        if asked.gpus and nodes and nodes[0] == nodes[1] and asked.gpus % nodes[0] == 0:
            return asked.gpus // nodes[0]
    return None
