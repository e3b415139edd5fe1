"""Decide whether this command starts agents on all nodes, and whether over ssh or by srun.

Over the user's own ssh, only the package must be installed on the other hosts. The user's configuration, keys and known
hosts are used unchanged; anything that would ask a question fails instead. Remote shells may be any (csh, fish), so the
script is passed to ``sh`` as one quoted word.

The agents in a SLURM allocation are one step, one task per node, with all resources of the job. srun does not get the
job's own options that would change the step (the input environment variables of srun(1)). Without ``--exact`` a step
gets all CPUs and GPUs of the job on each of its nodes. With ``--overlap`` it shares them with running steps. There are
two exceptions, tested with SLURM 22.05. GPUs requested with ``--gpus-per-task`` are requested again, by node, because
otherwise the step's single task gets the GPUs of one task. A job with ``--gpus`` cannot have a step with ``--overlap``
("Insufficient GRES available in allocation").
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from ddp_doctor.model.error_text import quoted
from ddp_doctor.parse.hostlist import expand
from ddp_doctor.parse.options import RENDEZVOUS_PORT, nnodes, written
from ddp_doctor.starters import starter_channel
from ddp_doctor.starters.detect import HOSTS_VARIABLE, Launcher, OuterWorld, tasks_on
from ddp_doctor.starters.endpoint import is_mine, resolve
from ddp_doctor.starters.place import Allocation, Asked, allocation
from ddp_doctor.starters.started_process import Start

_BY = {"slurm": "srun", "mpi": "mpirun", "torchrun": "torchrun"}


@dataclass(frozen=True)
class StartedNodes:
    """The nodes of a run that one command starts."""

    starts: Sequence[Start]
    hosts: tuple[str, ...]  # by node rank
    endpoint: tuple[str, int]  # port 0: the step computes it
    launcher: Launcher


def start_all_nodes(
    asked: Asked, env: Mapping[str, str], outer: OuterWorld | None, arguments: Sequence[str]
) -> StartedNodes | Asked:
    """Return how to start the agents, or this process's own options if it is its node's agent.

    ``arguments`` are the arguments of ``run`` that are not about nodes. Raises ValueError with one sentence.
    """
    hosts = hosts_to_start(asked, env, outer)
    if hosts is None:
        return asked
    allocated = None if asked.hosts else allocation(env, outer)
    if len(hosts) == 1 and (allocated.is_inside if allocated else is_here(hosts[0])):
        return replace(asked, nnodes="1", hosts=())
    if allocated is not None:
        return _in_allocation(allocated, hosts, asked, env, arguments)
    where = asked.endpoint or (address_of(hosts[0], env), RENDEZVOUS_PORT)
    at = ("--rdzv-endpoint", written(*where), "--nnodes", str(len(hosts)))
    commands = [(*doctor(), "run", *arguments, *at, "--node-rank", str(rank)) for rank in range(len(hosts))]
    try:
        starts = over_ssh(hosts, commands, env, os.getcwd())
    except FileNotFoundError:
        raise ValueError("--hosts requires ssh, which is not on PATH; run this command on each host instead") from None
    return StartedNodes(starts, names(hosts), where, "ssh")


def hosts_to_start(asked: Asked, env: Mapping[str, str], outer: OuterWorld | None) -> tuple[str, ...] | None:
    """Return the hosts, as given, whose agents this command starts, or None if another launcher starts them.

    Raises ValueError with one sentence.
    """
    if asked.hosts:
        if outer is not None and outer.nnodes * outer.local_size > 1:
            raise ValueError(f"--hosts starts all nodes itself; run this command once, without {_BY[outer.launcher]}")
        return chosen(asked)
    allocated = allocation(env, outer) if asked.node_rank is None else None
    if allocated is None:
        return None
    least, most = nnodes(asked.nnodes) if asked.nnodes else (1, len(allocated.hosts))
    if least > len(allocated.hosts):
        raise ValueError(
            f"--nnodes asks for {least} nodes, but SLURM job {allocated.job_id} has {len(allocated.hosts)}; request"
            " more with `sbatch -N` or `salloc -N`, or omit --nnodes"
        )
    return allocated.hosts[:most]


def chosen(asked: Asked) -> tuple[str, ...]:
    """Return the first hosts of the list, as many as --nnodes allows. Raises ValueError."""
    if asked.node_rank is not None:
        raise ValueError("--hosts assigns the node ranks itself; omit --node-rank")
    called = names(asked.hosts)
    twice = next((name for number, name in enumerate(called) if name in called[:number]), None)
    if twice is not None:
        raise ValueError(f"host {quoted(twice)} is listed twice; list each host once, even if it has several slots")
    least, most = nnodes(asked.nnodes) if asked.nnodes else (1, len(called))
    if len(called) < least:
        raise ValueError(
            f"--nnodes asks for {least} nodes, but the host list has only {len(called)}; list more hosts, or omit"
            " --nnodes"
        )
    chosen = asked.hosts[:most]
    if len(chosen) > 1 and any(name in ("localhost", "127.0.0.1", "::1") for name in names(chosen)):
        raise ValueError("other hosts cannot reach this host by the name localhost; list its host name instead")
    return chosen


def _in_allocation(
    allocated: Allocation, hosts: tuple[str, ...], asked: Asked, env: Mapping[str, str], arguments: Sequence[str]
) -> StartedNodes:
    where = asked.endpoint or (hosts[0], 0)
    at = ("--rdzv-endpoint", written(*where)) if where[1] else ()
    try:
        start = by_srun(hosts, (*doctor(), "run", *arguments, *at), env)
    except FileNotFoundError:
        raise ValueError(
            f"SLURM job {allocated.job_id} has {len(hosts)} nodes, but srun is not on PATH; add it to PATH, or test"
            " only this host with --nnodes 1"
        ) from None
    return StartedNodes([start], hosts, where, "slurm")


def doctor() -> tuple[str, ...]:
    """Return the command of this program with this interpreter: its script, its single file, or ``-m``."""
    if archive := single_file():
        return sys.executable, archive
    script = os.path.abspath(sys.argv[0])
    if os.path.basename(script) == "ddp-doctor" and os.path.isfile(script):
        return sys.executable, script
    return sys.executable, "-m", "ddp_doctor"


def single_file() -> str | None:
    """Return the zip of tools/single_file.py that Python runs in this process, if it does."""
    main = getattr(sys.modules["__main__"], "__file__", None) or ""
    archive = os.path.abspath(os.path.dirname(main)) if os.path.basename(main) == "__main__.py" else ""
    return archive if os.path.isfile(archive) else None


# --- over ssh ----------------------------------------------------------------------------------------

_CONNECT_S = 10
#: Simultaneous lookups: a dead name server takes seconds for each.
_LOOK_UPS = 16
#: LogLevel ERROR omits banners and keeps the reason for a failed connection.
_OPTIONS = (
    *("-T", "-x", "-a", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "-o", "LogLevel=ERROR"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "ClearAllForwardings=yes"),
    *("-o", "RemoteCommand=none"),
)
#: Variables that ranks and ddp-doctor read, and no others: an environment holds passwords.
_TAKEN = re.compile(
    r"(NCCL|TORCH|PYTORCH|GLOO|CUDA|OMP|GOMP|KMP|MKL|UCX|FI|IBV|RDMAV|MLX5|C10D|TP)_[A-Z0-9_]+"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PATH|DDP_DOCTOR_KEEP",
    re.ASCII,
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|KEY", re.IGNORECASE)


def over_ssh(
    hosts: Sequence[str], commands: Sequence[Sequence[str]], env: Mapping[str, str], folder: str
) -> list[Start]:
    """Return one start for each host, which may be USER@HOST; without ssh for this host.

    Raises FileNotFoundError if ssh is needed but missing.
    """
    ssh = shutil.which("ssh", path=env.get("PATH"))
    ours = {starter_channel.VARIABLE: "1", HOSTS_VARIABLE: ",".join(names(hosts))}
    own = {name: value for name, value in env.items() if not name.startswith("PET_")}
    taken = {
        name: value
        for name, value in env.items()
        if _TAKEN.fullmatch(name) and not _SECRET.search(name) and "\n" not in value
    }
    settings = [f"{name}={value}" for name, value in sorted({**taken, **ours}.items())]
    with ThreadPoolExecutor(_LOOK_UPS) as pool:
        here = list(pool.map(is_here, hosts))
    starts = []
    for rank, (host, command) in enumerate(zip(hosts, commands, strict=True)):
        if here[rank]:
            starts.append(Start("this host", tuple(command), {**own, **ours}, (rank,)))
        elif ssh is None:
            raise FileNotFoundError("ssh")
        else:
            script = f"cd {shlex.quote(folder)} 2>/dev/null || :; exec {shlex.join(['env', *settings, *command])}"
            remote = f"exec sh -c {shlex.quote(script)}"
            starts.append(Start(f"ssh {host}", (ssh, *_OPTIONS, host, remote), env, (rank,)))
    return starts


def names(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the hosts without users."""
    return tuple(host.rpartition("@")[2] for host in hosts)


def is_here(host: str) -> bool:
    """Return True if this is the host, by its name or one of its addresses; another user's agent is started by ssh."""
    if "@" in host:
        return False
    return host in (socket.gethostname(), socket.getfqdn()) or is_mine(resolve(host)[0])


def address_of(host: str, env: Mapping[str, str]) -> str:
    """Return the address for other hosts: the name if it resolves, otherwise from ssh's configuration."""
    name = names([host])[0]
    ssh = shutil.which("ssh", path=env.get("PATH"))
    if resolve(name)[0] or ssh is None:
        return name
    words = ""
    with suppress(OSError, subprocess.TimeoutExpired):  # its configuration may run commands (Match exec)
        words = subprocess.run(
            (ssh, "-G", host), check=False, capture_output=True, text=True, timeout=_CONNECT_S
        ).stdout
    found = re.search(r"^hostname (\S+)$", words, re.MULTILINE)
    return found[1] if found else name


# --- by srun -----------------------------------------------------------------------------------------

#: Input variables of srun: the number of tasks, their nodes, their binding, their output.
_NOT_SHOWN = re.compile(
    r"SLURM_(NTASKS|NPROCS|NTASKS_PER_\w+|TASKS_PER_NODE|CPUS_PER_TASK|CPUS_PER_GPU|GPUS_PER_TASK"
    r"|GPUS_PER_SOCKET|GPU_BIND|TRES_PER_TASK|TRES_BIND|CPU_BIND\w*|MEM_BIND\w*|DISTRIBUTION|HOSTFILE|EXACT"
    r"|EXCLUSIVE|LABELIO|UNBUFFEREDIO|STDINMODE|STDOUTMODE|STDERRMODE|STEP_GRES|GRES|NNODES|JOB_NUM_NODES"
    r"|THREADS|THREADS_PER_CORE|CORE_SPEC|HINT|KILL_BAD_EXIT|WAIT|MULTI_PROG|RELATIVE|TASK_PROLOG|TASK_EPILOG"
    r"|EXPORT_ENV|WORKING_DIR|REMOTE_CWD|MPI_TYPE|WCKEY|NO_KILL|TIMELIMIT|SPREAD_JOB|PTY_\w+|STEP_\w+|STEPID)"
    r"|SRUN_CPUS_PER_TASK|PET_\w+"
)
_LAUNCH_FAILED = re.compile(r"srun: error: .*?\bnode (?P<host>[\w.-]+): (?P<why>.+)", re.ASCII)
_TASK_ENDED = re.compile(r"srun: error: (?P<hosts>\S+): tasks? [\d,-]+: (?P<how>.+)", re.ASCII)
_NODE_FAILED = re.compile(r"srun: error: (?P<how>Node failure) on (?P<hosts>\S+)", re.ASCII)
_EXEC_FAILED = re.compile(r"slurmstepd-(?P<host>[\w.-]+): error: (?P<why>execve\(\): .+)", re.ASCII)


def by_srun(hosts: Sequence[str], command: Sequence[str], env: Mapping[str, str], job_id: str = "") -> Start:
    """Return one srun for all hosts of an allocation, in its order; with ``job_id``, in that job and without its GPUs.

    Raises FileNotFoundError if srun is missing.
    """
    srun = shutil.which("srun", path=env.get("PATH"))
    if srun is None:
        raise FileNotFoundError("srun")
    options = (
        *("--nodes", str(len(hosts)), "--ntasks", str(len(hosts)), "--ntasks-per-node", "1"),
        *("--nodelist", ",".join(hosts), "--export", "ALL", "--cpu-bind", "none", "--mpi", "none"),
        *("--kill-on-bad-exit=0", "--wait", "0", "--job-name", "ddp-doctor"),
        # A step along with a job's steps, which use its resources: it requests none, otherwise it would wait for their
        # end.
        *(("--jobid", job_id, "--overlap", "--gres", "none", "--mem", "0", "--chdir", "/") if job_id else ()),
        *(_gpus(len(hosts), env) if not job_id else ()),
    )
    shown = {name: value for name, value in env.items() if not _NOT_SHOWN.fullmatch(name)}
    return Start(
        name="srun",
        argv=(srun, *options, *command),
        env={**shown, starter_channel.VARIABLE: "1"},
        node_ranks=tuple(range(len(hosts))),
        explain=_failed_host,
        ends_by_host=ends_by_host,
    )


def _gpus(nodes: int, env: Mapping[str, str]) -> tuple[str, ...]:
    if env.get("SLURM_GPUS"):
        return ()
    found = re.fullmatch(r"(\w+:)?(\d{1,4})", env.get("SLURM_GPUS_PER_TASK", ""), re.ASCII)
    if found is None:
        return ("--overlap",)
    tasks = min(tasks_on(env.get("SLURM_TASKS_PER_NODE", ""), node) for node in range(nodes))
    return "--overlap", "--gpus-per-node", f"{found[1] or ''}{int(found[2]) * tasks}"


def _failed_host(line: str) -> dict[str, str]:
    """Return host and reason, such as from ``srun: error: Task launch for StepId=7.3 failed on node fan2: ...``."""
    found = _LAUNCH_FAILED.fullmatch(line) or _EXEC_FAILED.fullmatch(line)
    return {found["host"]: f"SLURM could not start a task there: {found['why']}"} if found else {}


def ends_by_host(line: str) -> dict[str, str]:
    """Return hosts and how their tasks ended, from ``srun: error: node[2-3]: tasks 1-2: Killed`` or similar."""
    found = _TASK_ENDED.fullmatch(line) or _NODE_FAILED.fullmatch(line)
    if found is None:
        return {}
    with suppress(ValueError):
        return dict.fromkeys(expand(found["hosts"].rstrip(",")), f"srun says: {found['how']}")
    return {}
