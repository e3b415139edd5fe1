"""DD128, DD133: the numbers in a job script or configuration contradict each other."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ddp_doctor.checks.node.env_vars.launches import (
    backend,
    is_above_range,
    is_address,
    is_alone,
    starts_once,
    starts_several,
    torchruns,
)
from ddp_doctor.facts.node.env_vars import HostFile, Launch, SettingText
from ddp_doctor.knowledge.network.addresses import is_own_host
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import in_job_script
from ddp_doctor.wording.findings import counted, finding

_ONE_EACH = "Start one torchrun on each node (--ntasks-per-node=1), with as many ranks as GPUs and the job's --nnodes"
_ONE_DEEPSPEED = (
    "Start deepspeed once, on the first node, with a host file of all nodes; or give each node --no_ssh and --node_rank"
)
_ONE_EACH_POD = (
    "Start one torchrun in each pod, with as many ranks as GPUs, --nnodes as the number of pods, the address of the"
    " first pod, and a --node-rank for each, for example $JOB_COMPLETION_INDEX"
)
#: Programs that start a command on all nodes of a job, by scheduler.
_STARTERS = {"pbs": "mpiexec or pbsdsh", "lsf": "blaunch or jsrun"}
_BY_TASK = "Start as many tasks on a node as it gives GPUs to the job"
_SBATCH = "man sbatch: #SBATCH lines are comments, so no shell expands their variables"
_SRUN = "man srun: one task per node by default"
_TORCHRUN = "torch/distributed/run.py: each torchrun counts as one node and starts --nproc-per-node ranks"


@rule("DD128", "counts-of-a-script-disagree", Consequence.FAILS, SettingText)
def counts_of_a_script_disagree(recording: Recording) -> Iterator[Draft]:
    """The number of ranks or torchruns that a job script starts contradicts its other numbers.

    Finds: Reports more ranks on a node (its tasks times torchrun's --nproc-per-node) than requested GPUs. Reports
        more torchruns than --nnodes, or fewer than it waits for: without srun, only the first node starts one. A
        warning if srun starts more tasks than GPUs, if each node starts a separate job, or if several torchruns of
        several ranks start on each node without a number of GPUs or nodes. Also a --node-rank that is not below
        --nnodes, fewer --ntasks than nodes times --ntasks-per-node, a variable in an #SBATCH line, and nodes that a
        script starts one after another, each when the one before has ended. Not reported if only SLURM knows a number,
        if the number of nodes is a range, or if each torchrun has its node rank.
    Why: Ranks share a GPU, which NCCL refuses ("Duplicate GPU detected"), or fail with "invalid device ordinal".
        The rendezvous refuses extra torchruns, and the others wait for missing ones.
    Remedy: Start one torchrun task on each node, as many ranks as GPUs, and set --nnodes to the job's nodes.
    See: https://docs.pytorch.org/docs/stable/elastic/run.html
    """
    text = recording.first(SettingText)
    seen = set[str]()
    if text and text.job:
        yield from _unexpanded(text.job)
    for launch in text.launches if text else ():
        fault = _fault(text, launch) if text else None
        if fault is not None and fault.title not in seen:
            seen.add(fault.title)
            by_torchrun = launch.starts in ("torchrun", "accelerate", "deepspeed")
            yield finding(
                [Culprit(kind="setting", name=launch.starts if by_torchrun else "srun")],
                fault.title,
                Evidence(text=f"{launch.place}: {fault.why}", expected_from=_TORCHRUN if by_torchrun else _SRUN),
                in_job_script(fault.fix or _fix(text, by_torchrun=by_torchrun)),
                confidence=Confidence.LIKELY,
                severity=fault.severity,
            )


def _unexpanded(job: Launch) -> Iterator[Draft]:
    for option, value in job.arguments.items():
        yield finding(
            [Culprit(kind="setting", name=option)],
            f"sbatch does not expand variables: #SBATCH {option} is {value.text}",
            Evidence(text=f"line {job.line}: {option}={value.text}", expected_from=_SBATCH),
            in_job_script(f"Write the number, or give it on the command line: sbatch {option}=... SCRIPT"),
            confidence=Confidence.LIKELY,
        )


def _fix(text: SettingText | None, *, by_torchrun: bool) -> str:
    if text and text.job and text.job.program == "kubernetes":
        return _ONE_EACH_POD
    return _ONE_EACH if by_torchrun else _BY_TASK


class _Fault(NamedTuple):
    title: str
    why: str
    severity: Severity | None = None
    fix: str = ""


def _fault(text: SettingText, launch: Launch) -> _Fault | None:
    if launch.program == "configuration" or launch.cut:
        return None
    job = text.job
    others = any(each is not launch and each.starts in (launch.starts, "script") for each in text.launches)
    return (
        _one_after_another(text, launch)
        or _without_starter(job, launch)
        or _no_such_node_rank(launch)
        or _fewer_tasks(job, launch)
        or _other_number_of_torchruns(job, launch)
        or _same_devices(job, launch)
        or _too_few_starts(job, launch, others=others)
        or _more_ranks_than_devices(launch)
        or _more_ranks_than_gpus(job, launch)
        or _one_of_several_gpus(job, launch)
        or _a_job_on_each_node(job, launch)
    )


def _without_starter(job: Launch | None, launch: Launch) -> _Fault | None:
    if job is None or not starts_once(launch):
        return None
    nodes = job.nodes[0] if job.nodes else 1
    tasks = job.tasks or nodes * (job.tasks_per_node or 1)
    title = f"python starts once, on the first node, but the job has {counted(tasks, 'task')}"
    fix = "Start it on all tasks: srun python ..., or on each node: srun torchrun --nnodes=... ..."
    return _Fault(title, "no srun and no launcher starts it", Severity.WARNING, fix)


def _one_after_another(text: SettingText, launch: Launch) -> _Fault | None:
    """Return the fault of a script that starts the next node only after the first, which waits for it, has exited."""
    if not launch.waits or launch.path or not torchruns(launch) or launch.agents is None or launch.agents[0] < 2:
        return None
    own = launch.arguments.get("--node-rank")
    in_loop = launch.program == "ssh" and not launch.by_hand  # over hosts
    later = text.launches[text.launches.index(launch) + 1 :]
    if launch.program == "torchrun":  # another one without ssh may be for another host
        later = tuple(each for each in later if each.program != "torchrun")
    others = {rank.text for each in later if (rank := each.arguments.get("--node-rank"))}
    if not in_loop and (own is None or not others - {own.text}):
        return None
    title = f"The script starts one node at a time, but {launch.starts} waits for {launch.agents[0]} nodes"
    fix = "Start each node in the background (end the command with &), and end the script with wait"
    return _Fault(title, "no & follows the command, so the next node starts after its end", fix=fix)


def _more_ranks_than_devices(launch: Launch) -> _Fault | None:
    """Return the fault of a launcher that starts more ranks than CUDA_VISIBLE_DEVICES names."""
    devices = launch.environment.get("CUDA_VISIBLE_DEVICES")
    if devices is None or devices.kind != "literal" or devices.unless or not torchruns(launch):
        return None
    names, ranks = [name for name in devices.text.split(",") if re.fullmatch(r"[\w-]+", name)], launch.ranks_per_task
    if not names or not ranks or ranks <= len(names):
        return None
    title = f"{ranks} ranks start on each node, but CUDA_VISIBLE_DEVICES names {counted(len(names), 'GPU')}"
    why = f"CUDA_VISIBLE_DEVICES={devices.text}, {ranks} ranks"
    return _Fault(title, why, fix="Set the number of ranks to the number of GPUs that the ranks can see")


def _one_of_several_gpus(job: Launch | None, launch: Launch) -> _Fault | None:
    """Return the fault of one rank on each of several nodes whose other GPUs stay idle."""
    if not torchruns(launch) or launch.ranks_per_task != 1 or launch.agents is None or launch.agents[0] < 2:
        return None
    if _tasks_of_a_node(job, launch) != 1 or (gpus := _gpus_of_a_node(job, launch, 1) or 1) < 2:
        return None
    title = f"1 rank starts on each node, but the job requests {gpus} GPUs per node"
    return _Fault(title, f"--nproc-per-node=1, {gpus} GPUs", Severity.WARNING, f"Set --nproc-per-node={gpus}")


def _no_such_node_rank(launch: Launch) -> _Fault | None:
    rank = launch.arguments.get("--node-rank")
    if rank is None or not rank.text.isdecimal() or launch.agents is None or not torchruns(launch):
        return None
    if int(rank.text) < launch.agents[1] or backend(launch) != "static":
        return None
    options = ("--machine_rank", "--num_machines") if launch.starts == "accelerate" else ("--node-rank", "--nnodes")
    title = f"{options[0]}={rank.text} is too large for {options[1]}={launch.agents[1]}: node ranks start at 0"
    fix = f"Number the nodes from 0, and set {options[1]} to the number of nodes"
    return _Fault(title, "node ranks are less than the number of nodes", fix=fix)


def _fewer_tasks(job: Launch | None, launch: Launch) -> _Fault | None:
    """Return the fault of --ntasks, which counts if --ntasks-per-node contradicts it."""
    if job is None or not (job.tasks and job.tasks_per_node) or launch.program != "srun":
        return None
    if launch.tasks or launch.tasks_per_node or launch.nodes:
        return None
    nodes, most = job.nodes or (1, 1)
    wanted = nodes * job.tasks_per_node
    if nodes != most or job.tasks >= wanted:
        return None
    title = f"srun starts {counted(job.tasks, 'task')}, not {wanted}: --ntasks={job.tasks} takes precedence"
    why = f"--ntasks={job.tasks}, --ntasks-per-node={job.tasks_per_node}, {counted(nodes, 'node')}"
    return _Fault(title, why, Severity.WARNING, "Remove --ntasks, or set it to nodes times --ntasks-per-node")


def _too_few_starts(job: Launch | None, launch: Launch, *, others: bool) -> _Fault | None:
    """Return the fault of a torchrun that waits for several nodes but is started on one."""
    is_one = launch.program == "torchrun" or launch.nodes == (1, 1) or launch.tasks == 1
    waits = launch.agents[0] if launch.agents and torchruns(launch) else 1
    if waits < 2 or not is_one or launch.by_hand or launch.path or others or job is None:
        return None
    missing = _STARTERS.get(job.program, "srun")
    started = f"no {missing} starts it" if launch.program == "torchrun" else f"{launch.by} starts one task"
    return _Fault(f"{launch.starts} starts on 1 node, but waits for {waits}", f"--nnodes {waits}; {started}")


def _a_job_on_each_node(job: Launch | None, launch: Launch) -> _Fault | None:
    """Return the fault of launchers that srun starts on each node and that do not know of each other."""
    nodes = _exact(job, launch)
    is_own = launch.starts == "deepspeed" and not {"--no-ssh", "--node-rank"} & launch.arguments.keys()
    alone = (torchruns(launch) and is_alone(launch)) or is_own
    by_one = launch.path or launch.program in ("array", "ssh") or not starts_several(launch)
    if not alone or by_one or not nodes or nodes < 2:
        return None
    if (launch.agents or (1, 1))[0] > 1:
        return None  # --standalone ignores it
    title = f"{nodes} separate jobs start: each node runs its own {launch.starts}"
    if launch.program == "pods":
        return _Fault(title, f"each of {nodes} pods starts it, without a number of nodes", Severity.WARNING)
    why = f"{launch.by} starts it on each of {nodes} nodes, and --nnodes is not given, so it is 1"
    fix = f"Give {launch.starts} --nnodes={nodes} and the first node's address" if torchruns(launch) else _ONE_DEEPSPEED
    return _Fault(title, why, Severity.WARNING, fix)


def _other_number_of_torchruns(job: Launch | None, launch: Launch) -> _Fault | None:
    if not torchruns(launch) or launch.agents is None or "--standalone" in launch.arguments:
        return None
    fewest, most = launch.agents
    nodes, each = _exact(job, launch), _tasks_of_a_node(job, launch)
    if launch.program in ("torchrun", "ssh"):  # other commands may start the others
        if job is None or job.nodes is None or fewest <= job.nodes[1] or launch.path:
            return None
        why = f"--nnodes {fewest}; line {job.line}: {counted(job.nodes[1], 'node')}"
        return _Fault(f"torchrun waits for {fewest} nodes, but the job has {job.nodes[1]}", why)
    expected = f"{fewest}:{most}" if most > fewest else f"{most}"
    if nodes is not None and each is not None:
        count, where = nodes * each, f"{f'{each} tasks on each of ' * (each > 1)}{nodes} nodes"
    elif launch.program == "mpirun" and launch.tasks:
        count, where = launch.tasks, f"-np {launch.tasks}"
    else:
        return None
    why = f"{where}, --nnodes {expected}"
    is_whole = job is not None and job.nodes == (nodes, nodes) and not launch.path and launch.tasks != 1
    if count <= most and not (count < fewest and is_whole):
        return None
    needs = f"takes {most}" if count > most else f"waits for {fewest}"
    by_torchrun = launch.starts == "torchrun"
    what, option = ("torchrun", "--nnodes") if by_torchrun else ("accelerate launcher", "--num_machines")
    verb = "starts" if count == 1 else "start"
    return _Fault(f"{counted(count, what)} {verb}, but {option}={expected} {needs}", why)


def _same_devices(job: Launch | None, launch: Launch) -> _Fault | None:
    """Return the fault of several torchruns on a node whose ranks have the same local ranks."""
    each, inside = _tasks_of_a_node(job, launch), launch.ranks_per_task
    asked = [request for request in (launch, job) if request is not None]
    if launch.program != "srun" or launch.starts != "torchrun" or not inside or each is None or each < 2:
        return None
    is_apart = "CUDA_VISIBLE_DEVICES" in launch.environment or any(request.gpus_per_task for request in asked)
    if is_apart or launch.agents is None or not any(request.gpus or request.gpus_per_node for request in asked):
        return None
    title = f"{each} torchruns on a node use the same GPUs: each numbers its ranks from LOCAL_RANK=0"
    fix = f"Start one torchrun per node with --nproc-per-node={each * inside}, or add --gpus-per-task={inside}"
    return _Fault(title, f"{each} tasks on a node, --nproc-per-node={inside}", fix=fix)


def _more_ranks_than_gpus(job: Launch | None, launch: Launch) -> _Fault | None:
    by_torchrun = torchruns(launch)
    each = 1 if launch.program in ("torchrun", "ssh", "array") else _tasks_of_a_node(job, launch)
    inside = launch.ranks_per_task if by_torchrun else 1
    if each is None or inside is None or launch.starts not in ("torchrun", "accelerate", "python"):
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
    if launch.program == "mpirun" and launch.tasks and launch.tasks_per_node:
        return -(-launch.tasks // launch.tasks_per_node)
    nodes = launch.nodes or (job.nodes if job else None)
    return nodes[0] if nodes and nodes[0] == nodes[1] else None


def _tasks_of_a_node(job: Launch | None, launch: Launch) -> int | None:
    """Return the number of tasks that srun or mpirun starts on each node, or None if unknown."""
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


@rule("DD133", "launcher-configuration-contradicts-itself", Consequence.FAILS, SettingText)
def launcher_configuration_contradicts_itself(recording: Recording) -> Iterator[Draft]:
    """No job, or only one machine of it, can use a configuration of accelerate or DeepSpeed.

    Finds: Errors: fewer num_processes than num_machines, or more processes on a machine than gpu_ids;
        a main_process_ip that is not an address; fp16 and bf16 both enabled in DeepSpeed's configuration; a
        train_batch_size not divisible by train_micro_batch_size_per_gpu times gradient_accumulation_steps; a host
        file that DeepSpeed refuses, or without the hosts that --num_nodes and --include need. Warnings:
        num_processes not divisible by num_machines; a host file with fewer slots than --num_gpus; an accelerate
        file for several machines with a machine_rank, which only that machine can use, or with a main_process_ip
        such as 127.0.0.1.
    Why: The machines wait for each other, or DeepSpeed refuses the configuration when it starts.
    Remedy: Give --machine_rank on each machine's command line; enable one precision; omit one batch size.
    See: https://www.deepspeed.ai/docs/config-json/
    """
    text = recording.first(SettingText)
    for launch in text.launches if text else ():
        given = {name: value.text for name, value in launch.arguments.items()}
        if launch.program == "configuration" and launch.starts == "deepspeed":
            yield from _of_deepspeed(launch, given)
        elif launch.host_file is not None:
            yield from _of_host_file(launch, launch.host_file, given)
        elif launch.starts == "accelerate" and not launch.cut:
            yield from _of_accelerate(launch, given)


_MACHINES = ("--nnodes", "--num-processes")
_OF_HOSTS = ("--num-nodes", "--num-gpus")
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def _of_accelerate(launch: Launch, given: dict[str, str]) -> Iterator[Draft]:
    """Yield what accelerate cannot share between machines: num_processes is the total of all of them."""
    machines, ranks = (int(text) if text.isdecimal() else 0 for text in (given.get(name, "") for name in _MACHINES))
    gpus = [gpu for gpu in given.get("--gpu-ids", "all").split(",") if gpu.strip().isdecimal()]
    why = f"num_machines: {machines}, num_processes: {ranks}"
    fix = "Set num_processes to the number of all processes: machines times GPUs per machine"
    if machines > 1 and 0 < ranks < machines:
        title = f"num_processes={ranks} is the total of all machines: {machines} machines need at least {machines}"
        yield _of_configuration(launch, title, why, fix)
    elif machines and gpus and ranks // machines > len(gpus):
        title = f"{ranks // machines} processes start on each machine, but gpu_ids has {counted(len(gpus), 'GPU')}"
        yield _of_configuration(launch, title, f"{why}, gpu_ids: {given['--gpu-ids']}", fix)
    elif machines and ranks % machines:
        each = ranks // machines
        title = f"{machines} machines cannot share num_processes={ranks} equally: accelerate starts {each} on each"
        yield _of_configuration(launch, title, why, fix, Severity.WARNING)
    if launch.program != "configuration":
        return
    if (host := given.get("host", "")) and not is_address(host):
        title = f"main_process_ip is not an address: {host}"
        yield _of_configuration(
            launch, title, "accelerate passes it to torch unchanged", "Give only the name or IP address of machine 0"
        )
    elif machines > 1 and is_own_host(host):
        title = f"main_process_ip={host} reaches no other machine, but num_machines is {machines}"
        fix = "Give a name or IP address of machine 0 that the other machines can reach"
        yield _of_configuration(launch, title, f"{why}, main_process_ip: {host}", fix, Severity.WARNING)
    if is_above_range(given.get("port", "")):
        title = f"main_process_port is above 65535: {given['port']}"
        yield _of_configuration(launch, title, "the highest port is 65535", "Give a port from 1024 to 65535")
    if machines > 1 and "--node-rank" in given:
        yield _of_configuration(
            launch,
            f"Only machine {given['--node-rank']} of {machines} can use this file, which sets its machine_rank",
            f"num_machines: {machines}, machine_rank: {given['--node-rank']}",
            "Give each machine its own file, or --machine_rank on its command line",
            Severity.WARNING,
        )


def _of_deepspeed(launch: Launch, given: dict[str, str]) -> Iterator[Draft]:
    if given.get("fp16") == given.get("bf16") == "true":
        title = "fp16 and bf16 are both enabled, which DeepSpeed refuses"
        yield _of_configuration(launch, title, "fp16 and bf16: enabled", "Enable one of them")
    whole, micro, steps = (int(text) if text.isdecimal() else 0 for text in (given.get(name, "") for name in _BATCHES))
    each = micro * (steps or 1)
    if whole and each and whole % each:
        title = (
            f"train_batch_size={whole} is not a multiple of {micro} (micro batch) x {steps or 1} (accumulation steps)"
        )
        why = "it has to be their product with the number of ranks"
        yield _of_configuration(launch, title, why, "Leave out train_batch_size")


def _of_host_file(launch: Launch, file: HostFile, given: dict[str, str]) -> Iterator[Draft]:
    nodes, gpus = (int(text) if text.isdecimal() else 0 for text in (given.get(name, "") for name in _OF_HOSTS))
    path = given["--hostfile"]
    if file.refused:
        title = f"DeepSpeed refuses the host file {path}: {file.refused}"
        yield _of_configuration(launch, title, f"--hostfile {path}", "Write one line per host: NAME slots=8")
    elif nodes > len(file.hosts):
        found = counted(len(file.hosts), "host")
        title = f"--num_nodes={nodes}, but the host file {path} has {found}: DeepSpeed starts on no other"
        yield _of_configuration(launch, title, ", ".join(file.hosts[:8]), f"Add the missing hosts to {path}")
    elif missing := _not_in_host_file(given.get("--include", ""), file):
        title = f"--include={given['--include']} names {missing}, which the host file {path} does not have"
        fix = "Name hosts of the file, and slots from 0 to slots-1: --include=HOST:0,1@HOST:0,1"
        yield _of_configuration(launch, title, "DeepSpeed refuses other hosts and slots", fix)
    elif file.slots and gpus > min(file.slots):
        title = f"--num_gpus={gpus}, but the host file {path} has slots={min(file.slots)}"
        fix = "Give --num_gpus the number of GPUs per host"
        yield _of_configuration(launch, title, "--num_gpus replaces the slots", fix, Severity.WARNING)


def _not_in_host_file(include: str, file: HostFile) -> str:
    """Return the first host or slot of ``work1:0,1@work2`` missing in a host file (deepspeed/launcher/runner.py)."""
    slots = dict(zip(file.hosts, file.slots, strict=True))
    for part in filter(None, include.split("@")):
        host, _, given = part.partition(":")
        if not re.fullmatch(r"[\w.-]+", host):
            return ""  # a variable
        if host not in slots:
            return f"host {host}"
        for slot in given.split(","):
            if slot.isdecimal() and int(slot) >= slots[host]:
                return f"slot {slot} of {host}"
    return ""


def _of_configuration(launch: Launch, title: str, why: str, fix: str, severity: Severity | None = None) -> Draft:
    return finding(
        [Culprit(kind="setting", name=launch.starts)],
        title,
        Evidence(text=f"{launch.place}: {why}", expected_from=f"{launch.starts}'s launcher"),
        in_job_script(fix),
        confidence=Confidence.LIKELY,
        severity=severity,
    )
