"""Starting the agents of a SLURM allocation: one step, one task a node, with all that the job has.

What srun would take from the job's own options and change the step with, it is not shown (the input
environment variables of srun(1)). Without ``--exact`` a step gets all CPUs and GPUs of the job on each of its
nodes, and with ``--overlap`` shares them with steps that run already. Two exceptions, tried with SLURM 22.05:
GPUs asked for by ``--gpus-per-task`` are asked for again, by node, or the step's one task gets those of one;
and a job with ``--gpus`` can have no step with ``--overlap`` ("Insufficient GRES available in allocation").
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ddp_doctor.parse.hostlist import expand
from ddp_doctor.starters import starter_channel
from ddp_doctor.starters.detect import tasks_on
from ddp_doctor.starters.started_process import Start

#: Of srun's input: how many tasks, where, bound to what, how their output goes.
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
    """One srun for all hosts of an allocation, in its order; ``job_id``: of this one, and without its GPUs.

    Raises FileNotFoundError where there is none.
    """
    srun = shutil.which("srun", path=env.get("PATH"))
    if srun is None:
        raise FileNotFoundError("srun")
    options = (
        *("--nodes", str(len(hosts)), "--ntasks", str(len(hosts)), "--ntasks-per-node", "1"),
        *("--nodelist", ",".join(hosts), "--export", "ALL", "--cpu-bind", "none", "--mpi", "none"),
        *("--kill-on-bad-exit=0", "--wait", "0", "--job-name", "ddp-doctor"),
        # A step beside those of a job, whose resources they have: it takes none, else it would wait for their end.
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
    """Host and reason, such as from ``srun: error: Task launch for StepId=7.3 failed on node fan2: ...``."""
    found = _LAUNCH_FAILED.fullmatch(line) or _EXEC_FAILED.fullmatch(line)
    return {found["host"]: f"SLURM could not start a task there: {found['why']}"} if found else {}


def ends_by_host(line: str) -> dict[str, str]:
    """Hosts and how, such as from ``srun: error: node[2-3]: tasks 1-2: Killed`` or ``… Exited with exit code 1``."""
    found = _TASK_ENDED.fullmatch(line) or _NODE_FAILED.fullmatch(line)
    if found is None:
        return {}
    with suppress(ValueError):
        return dict.fromkeys(expand(found["hosts"].rstrip(",")), f"srun says: {found['how']}")
    return {}
