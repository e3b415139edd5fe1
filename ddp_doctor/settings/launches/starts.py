"""The programs that start other programs: how they get their numbers, and the arguments of launchers of ranks."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import accumulate
from typing import Any

from ddp_doctor.facts.node.env_vars import HostFile
from ddp_doctor.parse.hostlist import expand


def names(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def _fields(text: str) -> dict[str, str]:
    return dict(zip(text.split()[::2], text.split()[1::2], strict=True))


#: man srun, man sbatch (SLURM 23.11): the fields of Launch by option.
SLURM = _fields("""
    -N nodes --nodes nodes -n tasks --ntasks tasks --ntasks-per-node tasks_per_node --tasks-per-node tasks_per_node
    -G gpus --gpus gpus --gpus-per-node gpus_per_node --gres gpus_per_node --gpus-per-task gpus_per_task
    -c cpus_per_task --cpus-per-task cpus_per_task -w hosts --nodelist hosts
""")
#: mpirun(1) of Open MPI and MPICH.
MPI = _fields("""
    -np tasks --np tasks -n tasks -c tasks -N tasks_per_node -npernode tasks_per_node --npernode tasks_per_node
    -ppn tasks_per_node --map-by tasks_per_node -map-by tasks_per_node
""")
#: Options without a value, of srun, mpirun, torchrun, accelerate and deepspeed ...
FLAGS = names("""
    -l --label -u --unbuffered --exclusive --overlap --exact --pty -v -Q -q -O --overcommit -s --oversubscribe -K
    --kill-on-bad-exit -k --no-kill --multi-prog --allow-run-as-root --tag-output --report-bindings --verbose
    --container-writable --container-mount-home --no-container-mount-home --container-remap-root
    --no-container-remap-root --standalone -m --module --no-python --run-path --use-env --multi-gpu --use-deepspeed
    --use-fsdp --same-network --cpu --mps --quiet --debug --no-ssh --force-multi --enable-each-rank-log --autotuning
    --no-local-rank --bind-cores-to-rank --enable-elastic-training
""")
#: Options of Open MPI with one dash that take a word ...
_OPEN_MPI = names("-bind-to -rank-by -hostfile -machinefile -host -hosts -wdir -rf -output-filename -path")
#: ... and options of mpirun that take two words.
_PAIRS = names("-mca --mca -genv --gmca -gmca")
#: Options of mpirun for a file with hosts, and for a list of hosts: ``-H a:8,b:8`` (-f and -hosts: MPICH).
OF_HOSTS = names("--hostfile -hostfile --machinefile -machinefile -f"), names("-H --host -host -hosts")
MPIRUN = names("mpirun mpiexec orterun mpiexec.hydra prterun aprun ibrun")
SRUN = names("srun yhrun")
#: jsrun(1) of LSF on Summit, flux-run(1), lrun(1): tasks, tasks per node, nodes.
_RESOURCES = {
    "jsrun": _fields("-n tasks --nrs tasks -r tasks_per_node --rs_per_host tasks_per_node -a each --tasks_per_rs each"),
    "flux": _fields("-N nodes --nodes nodes -n tasks --ntasks tasks --tasks-per-node tasks_per_node"),
    "lrun": _fields("-N nodes -n tasks -T tasks_per_node"),
    "aprun": _fields("-n tasks -N tasks_per_node"),
}
TASK_STARTERS = SRUN | MPIRUN | _RESOURCES.keys()
#: Programs that start a command on each host of the job, and their options with a value.
ON_ALLOCATED = {"pbsdsh": names("-n -c"), "blaunch": names("-u -z")}
PYTHON = re.compile(r"python[\d.]*|pypy3?")
TORCHRUN_MODULES = names("torch.distributed.run torch.distributed.launch")
SHELLS = names("bash sh dash zsh ksh")
REMOTE = names("ssh pdsh clush pssh parallel-ssh dsh")
#: Commands that only run another command; that command is found by its name.
WRAPPERS = names("""
    env time nohup exec nice sudo stdbuf numactl taskset timeout ionice setsid unbuffer command nsys ncu strace py-spy
    uv poetry pixi conda mamba micromamba pipenv hatch apptainer singularity enroot docker podman nerdctl shifter ch-run
    pyxis sarus udocker podman-hpc xargs chrt catchsegv tini dumb-init gosu flock
""")
#: Wrappers that pass on only the variables that their options name.
ISOLATING = names("docker podman nerdctl udocker podman-hpc")
#: Launchers that are recognized, but whose ranks are not followed.
OTHER_LAUNCHERS = names("""
    horovodrun colossalai composer torchx ray fabric lightning sky bagua tune torchrunx
    swift xtuner axolotl litgpt llamafactory-cli
""")
#: Programs that start several ranks by themselves ...
ALWAYS_LAUNCH = names("horovodrun torchx swift xtuner axolotl litgpt llamafactory-cli")
#: ... but not with these subcommands.
WITH_SIDE_STEPS = OTHER_LAUNCHERS | {"trl"}
SIDE_STEPS = names("""
    api chat convert convert_to_hf download export list merge preprocess prepare serve status stop version vllm-serve
    webchat webui
""")
#: A misspelt torch.distributed.run or torch.distributed.launch.
MISSPELT = re.compile(r"torch[._]?distribut\w*[._](?:launch|run)\w*")
#: torch 2.13 torch/distributed/run.py, with - for _ in names; -m is the older module, which may not read PET_*.
TORCHRUN = names("""
    --nnodes --nproc-per-node --node-rank --master-addr --master-port --standalone --rdzv-backend --rdzv-endpoint
    --rdzv-id -m
""")
#: All options of torchrun, which accepts unique prefixes of them.
_TORCHRUN_OPTIONS = sorted(
    names("""
    --nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --standalone --max-restarts --role
    --monitor-interval --start-method --event-log-handler --module --no-python --run-path --log-dir --redirects --tee
    --local-ranks-filter --node-rank --master-addr --master-port --local-addr --logs-specs --numa-binding --use-env
    --signals-to-handle --virtual-local-rank --log-line-prefix-template --shutdown-timeout
    --duplicate-stdout-filters --duplicate-stderr-filters
""")
)
#: accelerate/commands/launch.py and utils/launch.py (prepare_multi_gpu_env): torchrun's option for each.
ACCELERATE = _fields("""
    --num-machines --nnodes --num-processes --num-processes --machine-rank --node-rank --main-process-ip --master-addr
    --main-process-port --master-port --rdzv-backend --rdzv-backend --config-file --config-file
""")
#: deepspeed/launcher/runner.py.
DEEPSPEED = names("--hostfile --include --num-nodes --num-gpus --master-addr --master-port --node-rank --no-ssh")
#: Programs that srun starts but that do not start ranks: they set up, show or measure nodes.
HARMLESS = names("""
    hostname echo printf true false sleep date ls rm mkdir cp mv cat ln chmod tar rsync find du df free ps id
    which wait nvidia-smi rocm-smi dcgmi lscpu lspci ulimit printenv env kill pkill killall sbcast scontrol
    module pip pip3 git wget curl touch test [ [[ cd export mount umount fusermount nvidia-cuda-mps-control ddp-
    doctor dmesg uptime whoami getent ip ping sync sysctl sed awk grep wandb huggingface-cli hf aws gcloud
    gsutil set unset ldd modprobe systemctl trap source tee uname nproc
""")
_PAYLOADS = {"torchrun", "accelerate", "deepspeed"} | SHELLS | OTHER_LAUNCHERS | TASK_STARTERS | ON_ALLOCATED.keys()
HARMLESS_FORMS = re.compile(r"ib\w+|\w+_perf|osu_\w+")
#: A name with an underscore: a variable, because host names have none.
VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
_GPUS = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:(\d{1,6})(?=$|[,(])|^(?:[^:,]+:)?(\d{1,6})$")
_RANGE = re.compile(r"(\d{1,6})(?:[-:](\d{1,6}))?")
_EACH = re.compile(r"(?:ppr:)?(\d{1,6})(?::node.*)?")


def fields_of(words: Sequence[str], options: dict[str, str]) -> dict[str, Any]:
    """Return the fields of Launch that leading options set; the last of several counts."""
    found = {options[name]: _value(options[name], value) for name, value in leading(words, options) if name in options}
    if found.pop("each", 1) != 1:  # jsrun: -n and -r count resource sets, which have several tasks
        found = {name: value for name, value in found.items() if not name.startswith("tasks")}
    return found


def leading(words: Sequence[str], options: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each option before a program."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        name, equals, value = words[at].partition("=")
        if name not in options and re.fullmatch(r"-[A-Za-z]\S+", name) and name[:2] in options and options is not MPI:
            name, equals, value = name[:2], "=", name[2:]
        length = 1 if equals else words_of_option(words, at)
        if not equals and length > 1:
            value = words[at + 1] if at + 1 < len(words) else ""
        yield name, value
        at += length


def behind_options(words: Sequence[str]) -> int:
    """Return the place of the first word after the leading options."""
    at = 1
    while at < len(words) and (words[at].startswith("-") or words[at] == ":"):
        if words[at] == "--":
            return at + 1
        at += words_of_option(words, at)
    return at


def options_of(name: str) -> dict[str, str]:
    """Return the fields of Launch by option of a program that starts tasks."""
    return SLURM if name in SRUN else _RESOURCES.get(name, MPI)


def words_of_option(words: Sequence[str], at: int) -> int:
    """Return the number of words of an option, including itself."""
    word = words[at]
    if word in _PAIRS:
        return 3
    joined = "=" in word or word in FLAGS or (re.fullmatch(r"-[A-Za-z]\S+", word) and word not in (*MPI, *_OPEN_MPI))
    return 1 if joined else 2


def dashed(words: Sequence[str]) -> list[str]:
    """Return the words with ``--rdzv_id`` written as ``--rdzv-id``."""
    return [re.sub(r"^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in words]


def is_harmless(name: str) -> bool:
    """Return True if a program is known not to start ranks."""
    return name in HARMLESS or HARMLESS_FORMS.fullmatch(name) is not None


def is_payload(word: str) -> bool:
    """Return True if a word names a program that starts ranks or a shell."""
    name = posixpath.basename(word)
    known = name in _PAYLOADS or PYTHON.fullmatch(name) is not None
    return known or name.endswith((".sh", ".bash", ".slurm"))


def meant_by(name: str) -> str | None:
    """Return the option of torchrun that a misspelt name means, or None for a known one or one of a newer release."""
    if not name.startswith("--") or any(option.startswith(name) for option in _TORCHRUN_OPTIONS):
        return None
    return next(iter(get_close_matches(name, _TORCHRUN_OPTIONS, 1, 0.85)), None)


def nodes_of(text: str) -> tuple[int, int] | None:
    """Return the minimum and maximum of ``4``, ``1-4`` or ``1:4``."""
    found = _RANGE.fullmatch(text)
    return (int(found[1]), int(found[2] or found[1])) if found else None


def _hosts(text: str) -> tuple[str, ...]:
    try:
        return tuple(sorted(dict.fromkeys(expand(text)), key=lambda name: (len(name), name)))
    except ValueError:  # a file with names, or an expansion
        return ()


def count_hosts(text: str, tasks: int | None) -> int | None:
    """Return the number of hosts in ``a:8,b:8`` that mpirun fills with its tasks; None if the text is no such list.

    The next host gets tasks once the slots of the previous one are used. A host without a number has one slot.
    """
    slots: dict[str, int] = {}
    for host in text.split(","):
        found = _HOST.fullmatch(host)
        if found is None:
            return None
        slots[found[1]] = slots.get(found[1], 0) + int(found[2] or 1)
    filled = list(accumulate(slots.values()))
    return next((count for count, total in enumerate(filled, 1) if tasks and total >= tasks), len(filled))


def listed_hosts(text: str) -> str:
    """Return ``a:8,b:8`` for mpirun's file of hosts, with lines such as ``a slots=8`` (MPICH: ``a:8``)."""
    lines = (line.partition("#")[0].split() for line in text.split("\n"))
    slots = ((words[0], re.search(r"\bslots=(\d+)", " ".join(words))) for words in lines if words)
    return ",".join(f"{host}:{found[1]}" if found else host for host, found in slots)


_HOST = re.compile(r"([\w.-]+)(?::(\d{1,6}))?")
_SLOTS = re.compile(r"(\S+)\s+slots=(\d{1,6})")


def host_file_of(text: str) -> HostFile:
    """Return what DeepSpeed reads from a host file (deepspeed/launcher/runner.py: fetch_hostfile)."""
    slots: dict[str, int] = {}
    for number, line in enumerate(map(str.strip, text.split("\n")), 1):
        found = _SLOTS.match(line)
        if not line or line.startswith("#"):
            continue
        if found is None or found[1] in slots:
            why = "names a host again" if found else "has no slots=N"
            return HostFile(refused=f"line {number} {why}")
        slots[found[1]] = int(found[2])
    if not slots:
        return HostFile(refused="it has no host")
    return HostFile(hosts=tuple(slots), slots=tuple(slots.values()))


def _value(field: str, text: str) -> Any:
    if field == "nodes":
        return nodes_of(text)
    if field == "hosts":
        return _hosts(text)
    found = (_GPUS.search if field.startswith("gpus") else _EACH.fullmatch)(text)
    return int(next(group for group in found.groups() if group)) if found else None
