"""How many nodes, tasks, ranks and GPUs the commands of a job script ask for; nothing is run.

#SBATCH --nodes=4 --gres=gpu:8                                        what the job has
kind: PyTorchJob … replicas: 3 … nvidia.com/gpu: 8                    likewise, in a manifest of Kubernetes
srun --ntasks-per-node=1 torchrun --nnodes=4 --nproc-per-node=8 …     4 nodes, a task on each, 8 ranks in a task
mpirun -np 32 -N 8 python train.py                                    32 tasks, 8 on each node

A number that stands in a variable counts where a line of the script, and no other, gives the variable that number.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ddp_doctor.facts.node.env_vars import Launch
from ddp_doctor.settings.text.shell_words import commands

#: man srun, man sbatch (SLURM 23.11): the fields of Launch by option.
_SLURM = {
    "-N": "nodes", "--nodes": "nodes", "-n": "tasks", "--ntasks": "tasks",
    "--ntasks-per-node": "tasks_per_node", "--tasks-per-node": "tasks_per_node",
    "-G": "gpus", "--gpus": "gpus", "--gpus-per-node": "gpus_per_node", "--gres": "gpus_per_node",
    "--gpus-per-task": "gpus_per_task", "-c": "cpus_per_task", "--cpus-per-task": "cpus_per_task",
}  # fmt: skip
#: mpirun(1) of Open MPI and MPICH.
_MPI = {
    "-np": "tasks", "--np": "tasks", "-n": "tasks", "-c": "tasks", "-N": "tasks_per_node",
    "-npernode": "tasks_per_node", "--npernode": "tasks_per_node", "-ppn": "tasks_per_node",
    "--map-by": "tasks_per_node", "-map-by": "tasks_per_node",
}  # fmt: skip
#: torch 2.13 torch/distributed/run.py, with - for _ in names.
_TORCHRUN = {
    "--nnodes": "agents", "--nproc-per-node": "ranks_per_task", "--node-rank": "node_rank",
    "--master-addr": "endpoint", "--rdzv-endpoint": "endpoint",
}  # fmt: skip
#: Options without a value.
_FLAGS = frozenset(
    (
        *("-l", "--label", "-u", "--unbuffered", "--exclusive", "--overlap", "--exact", "--pty", "-v", "-Q", "-q"),
        *("-O", "--overcommit", "-s", "--oversubscribe", "-K", "--kill-on-bad-exit", "-k", "--no-kill", "--multi-prog"),
        *("--allow-run-as-root", "--oversubscribe", "--tag-output", "--report-bindings"),
        *("--standalone", "-m", "--module", "--no-python", "--run-path"),
    )
)
#: How many words follow such an option of mpirun.
_PAIRS = frozenset(("-mca", "--mca", "-genv", "--gmca", "-gmca"))
_MPIRUN = frozenset(("mpirun", "mpiexec", "orterun", "mpiexec.hydra"))
_TORCHRUN_MODULES = frozenset(("torch.distributed.run", "torch.distributed.launch"))
_PYTHON = re.compile(r"python[\d.]*")
_SHELLS = frozenset(("bash", "sh", "dash", "zsh", "apptainer", "singularity", "enroot", "shifter"))
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d{1,6})(?=$|[,(])|^(?:[^:,]+:)?(\d{1,6})$")
_RANGE = re.compile(r"(\d{1,6})(?:[-:](\d{1,6}))?")
_OWN_HOST = re.compile(r"\[?(?:localhost(?:\.localdomain)?|::1|127(?:\.\d{1,3}){1,3})\]?(?::\d{1,5})?")
#: kubeflow.org/v1, a replica is a pod; core/v1, limits and requests of a container.
_TRAINING = re.compile(r"^kind:[ \t]*PyTorchJob\b", re.MULTILINE)
_REPLICAS = re.compile(r"^[ \t]+replicas:[ \t]*(\d{1,6})[ \t]*(?:#.*)?$", re.MULTILINE)
_GPUS_OF_POD = re.compile(r"^[ \t]+[\"']?nvidia\.com/gpu[\"']?:[ \t]*[\"']?(\d{1,6})\b", re.MULTILINE)
_RANKS_OF_POD = re.compile(r"^[ \t]+nprocPerNode:[ \t]*[\"']?(\d{1,6})\b", re.MULTILINE)
_EACH = re.compile(r"(?:ppr:)?(\d{1,6})(?::node.*)?")
#: ``NNODES=4`` on a line of its own.
_CONSTANT = re.compile(r"^(?:export[ \t]+)?([A-Za-z_]\w*)=([\"']?)(\d{1,6})\2[ \t]*(?:#.*)?$", re.ASCII | re.MULTILINE)
VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
#: More words are no command that starts a job.
_MOST_WORDS = 400

#: The text of a word with the value of the variable that it is.
Resolve = Callable[[str], str]


def resolver(text: str) -> Resolve:
    """Of the variables that one line of the script makes a number, and nothing else in it changes."""
    found = {match[1]: match[3] for match in _CONSTANT.finditer(text)}
    names = re.findall(r"(?<![$\w{])[A-Za-z_]\w*", text, re.ASCII) if found else []
    constants = {name: value for name, value in found.items() if names.count(name) == 1}

    def resolved(word: str) -> str:
        return VARIABLE.sub(lambda match: constants.get(match[1] or match[2], match[0]), word)

    return resolved


def job_of(lines: Sequence[str]) -> Launch | None:
    """What the #SBATCH lines ask for: those before the first command; of several parts of a job nothing is known."""
    words, first = [], 0
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            first = first or number
            words += [word.text for command in commands(line[7:]) for word in command]
    if not words or "hetjob" in words or "packjob" in words:
        return None
    fields = dict(_leading_options(words, _SLURM))
    return Launch(program="sbatch", line=first, **fields) if fields else None


def job_of_operator(text: str) -> tuple[Launch, Launch] | None:
    """What a manifest of Kubeflow's training operator asks for, and the ranks that it starts; None for another one."""
    kind = _TRAINING.search(text)
    replicas = [int(found) for found in _REPLICAS.findall(text)]
    if kind is None or not replicas or len(_TRAINING.findall(text)) > 1:
        return None
    nodes = (sum(replicas), sum(replicas))
    gpus, ranks = ({int(found) for found in pattern.findall(text)} for pattern in (_GPUS_OF_POD, _RANKS_OF_POD))
    line = text.count("\n", 0, kind.start()) + 1
    job = Launch(program="kubernetes", line=line, nodes=nodes, gpus_per_node=gpus.pop() if len(gpus) == 1 else None)
    each = ranks.pop() if len(ranks) == 1 else None
    return job, Launch(program="torchrun", line=line, starts="torchrun", agents=nodes, ranks_per_task=each)


def launch_of(words: Sequence[str], line: int, resolve: Resolve, around: Launch | None) -> Launch | None:
    """The start of ranks, or of what may start them; ``around`` is the srun of a shell that this stands in."""
    words = [resolve(word) for word in words[:_MOST_WORDS]]
    name = posixpath.basename(words[0])
    options = _SLURM if name == "srun" else _MPI if name in _MPIRUN else None
    launch = around
    if options is not None:
        fields = dict(_leading_options(words[1:], options))
        launch = Launch(program="srun" if name == "srun" else "mpirun", line=line, **fields)
        at = 1
        while at < len(words) and (words[at].startswith("-") or words[at] == ":"):
            at += _words_of_option(words, at)
        words = words[at:]
    while words and ("=" in words[0] or posixpath.basename(words[0]) in ("env", "numactl", "time", "exec")):
        words = words[1:]
    if not words:
        return None
    name = posixpath.basename(words[0])
    is_module = _PYTHON.fullmatch(name) and any(word in _TORCHRUN_MODULES for word in words[1:6])
    if name == "torchrun" or is_module:
        start = 1 if name == "torchrun" else next(at for at, word in enumerate(words) if word in _TORCHRUN_MODULES) + 1
        dashed = [re.sub(r"^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in words[start:]]
        fields = dict(_leading_options(dashed, _TORCHRUN))
        launch = launch or Launch(program="torchrun", line=line)
        return launch.model_copy(update={**fields, "line": line, "starts": "torchrun"})
    if launch is not None and _PYTHON.fullmatch(name):
        return launch.model_copy(update={"line": line, "starts": "python"})
    if launch is not None and (name in _SHELLS or name.endswith((".sh", ".py")) or name.startswith("$")):
        return launch.model_copy(update={"starts": "script"})
    return None


def _words_of_option(words: Sequence[str], at: int) -> int:
    word = words[at]
    if word in _PAIRS:
        return 3
    joined = "=" in word or word in _FLAGS or (re.fullmatch(r"-[A-Za-z]\S+", word) and word not in (*_MPI, "-npernode"))
    return 1 if joined or word.startswith("$") else 2


def _leading_options(words: Sequence[str], options: dict[str, str]) -> Iterator[tuple[str, Any]]:
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        if name not in options and re.fullmatch(r"-[A-Za-z]\S+", name) and name[:2] in options and options is _SLURM:
            name, equals, value = name[:2], "=", name[2:]
        length = 1 if equals else _words_of_option(words, at)
        if not equals and length > 1:
            value = words[at + 1] if at + 1 < len(words) else ""
        if name in options:
            yield options[name], _value(options[name], value)
        at += length


def _value(field: str, text: str) -> Any:
    if field in ("nodes", "agents"):
        found = _RANGE.fullmatch(text)
        return (int(found[1]), int(found[2] or found[1])) if found else None
    if field == "endpoint":
        return text if _OWN_HOST.fullmatch(text) else "elsewhere"
    if field == "node_rank":
        return True
    found = (_GPUS.search if field.startswith("gpus") else _EACH.fullmatch)(text)
    return int(next(group for group in found.groups() if group)) if found else None
