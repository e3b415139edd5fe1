"""Functions that rules about launches share: the nodes of a launch and the texts of findings."""

import re
from collections.abc import Iterator

from ddp_doctor.facts.node.env_vars import Launch, SettingText
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.wording.findings import finding

#: By the starter of the nodes.
FIRST = {
    "pods": "Give the address of the pod with node rank 0, for example POD-0.SERVICE of a headless service",
    "slurm": 'Give the name of the first node: $(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
    "hosts": "Give a name of the first host that the other hosts can resolve",
}
_OF_ACCELERATE = {
    "torchrun": "accelerate launch",
    "--nnodes": "--num_machines",
    "--node-rank": "--machine_rank",
    "--master-addr": "--main_process_ip",
    "--master-port": "--main_process_port",
    "--rdzv-endpoint": "--main_process_ip",
    "--rdzv-backend": "--rdzv_backend",
}
TORCHRUN = "torch/distributed/run.py"
WAIT = "The nodes wait for each other until the rendezvous times out."


def torchruns(launch: Launch) -> bool:
    """Return True if a launch starts torchrun, itself or through accelerate."""
    return launch.starts in ("torchrun", "accelerate")


def is_address(text: str) -> bool:
    """Return False for a text with a user or a scheme, such as ``me@10.0.0.1`` or ``tcp://n0``, and for a number."""
    return not (re.search(r"[@/\s]", text) or text.isdecimal())


def is_above_range(port: str) -> bool:
    """Return True for a number that is too high for a port."""
    return port.isdecimal() and int(port[:9]) > 65535


def starts_once(launch: Launch) -> bool:
    """Return True for a Python program that nothing starts on several nodes, in a job of several tasks."""
    return launch.starts == "python" and launch.program == "torchrun" and not launch.by_hand


def backend(launch: Launch) -> str:
    """The rendezvous backend of a torchrun; empty if only the script knows it when it runs."""
    given = launch.arguments.get("--rdzv-backend")
    return "static" if given is None else given.text if given.kind == "literal" else ""


def is_alone(launch: Launch) -> bool:
    """Return True if each of these torchruns is a separate job."""
    return "--standalone" in launch.arguments or "--nnodes" not in launch.arguments


def starts_several(launch: Launch) -> bool:
    """Return True if this line starts on several nodes, or may."""
    if launch.program == "torchrun":
        return launch.by_hand
    is_one = launch.nodes == (1, 1) or (launch.tasks == 1 and launch.nodes is None)
    return not launch.by_hand and not is_one and launch.program != "configuration"


def nodes_of_launch(job: Launch | None, launch: Launch) -> tuple[int, int] | None:
    """Return the minimum and maximum number of nodes whose ranks meet; None if unknown."""
    if torchruns(launch) and (launch.agents or is_alone(launch)):
        return launch.agents or (1, 1)
    if launch.tasks == 1 or launch.program == "torchrun":
        return None if launch.by_hand and is_open(launch) else (1, 1)
    if launch.program == "mpirun" and launch.tasks and launch.tasks_per_node:
        count = -(-launch.tasks // launch.tasks_per_node)
        return (count, count)
    return launch.nodes or (job.nodes if job and launch.program == "srun" else None)


def launches_of_several(recording: Recording) -> Iterator[tuple[SettingText, Launch, int]]:
    """Yield the launches with ranks on several nodes, and the number of nodes."""
    text = recording.first(SettingText)
    for launch in text.launches if text else ():
        nodes = nodes_of_launch(text.job, launch) if text else None
        number = nodes[0] if nodes else _SEVERAL if is_open(launch) else 1
        if text is not None and number != 1 and launch.program != "configuration" and not launch.cut:
            yield text, launch, number


#: The number of nodes if only the shell that runs the launch knows it.
_SEVERAL = 0


def is_open(launch: Launch) -> bool:
    """Return True if only the shell that runs the launch knows the number of nodes."""
    given = launch.arguments.get("--nnodes")
    return torchruns(launch) and given is not None and (given.kind != "literal" or "$" in given.text)


def started_by(text: SettingText, launch: Launch) -> str:
    """Return what starts the nodes: ``pods``, ``slurm`` or ``hosts``."""
    in_slurm = launch.program == "srun" or (text.job is not None and text.job.program == "sbatch")
    return "pods" if launch.program == "pods" else "slurm" if in_slurm else "hosts"


def first_host(text: SettingText, launch: Launch) -> str:
    """Return the advice on how to give the address of the first node."""
    return FIRST[started_by(text, launch)]


def counted_nodes(nodes: int) -> str:
    """Return ``4 nodes``, or ``several nodes`` for 0, an unknown number."""
    return f"{nodes} nodes" if nodes else "several nodes"


def if_several(nodes: int) -> str:
    """Return the condition of a title if the number of nodes is unknown."""
    return "" if nodes else " if --nnodes is above 1"


def severity_of(launch: Launch, nodes: int) -> Severity | None:
    """Return a warning if the number of nodes is unknown or if another program may set PET_*."""
    return Severity.WARNING if launch.by_hand or not nodes else None


def draft(
    launch: Launch,
    title: str,
    why: str,
    remedy: Remedy,
    *,
    detail: str = WAIT,
    severity: Severity | None = None,
    name: str = "",
    source: str = TORCHRUN,
) -> Draft:
    """Return the finding about a launch, with its launcher's option names."""
    return finding(
        [Culprit(kind="setting", name=name or launch.starts)],
        _in_own_words(launch, title),
        Evidence(text=f"{launch.place}: {_in_own_words(launch, why)}", expected_from=source),
        remedy.model_copy(update={"summary": _in_own_words(launch, remedy.summary)}),
        detail=detail,
        confidence=Confidence.LIKELY,
        severity=severity,
    )


def _in_own_words(launch: Launch, text: str) -> str:
    """Return the text with the names that accelerate gives to torchrun's options."""
    if launch.starts != "accelerate":
        return text
    return re.sub(
        r"torchrun|--rdzv-endpoint|--[a-z]+-[a-z]+|--nnodes", lambda name: _OF_ACCELERATE.get(name[0], name[0]), text
    )
