"""Detect the launcher of this process: torchrun, a SLURM step, Open MPI, or none.

An outer world is recognized by the launcher's own variables, not by RANK: a leftover RANK in a login shell is a
finding, not a world. Launchers start each other, so the innermost counts: SLURM starts Open MPI's daemons (their ranks
then have the daemon's SLURM_PROCID), and both start torchrun.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ddp_doctor.ranks.process import started

Launcher = Literal["plain", "slurm", "torchrun", "kubernetes", "mpi", "ssh"]

#: Set by ddp-doctor for agents that it starts over ssh: the hosts by node rank, separated by commas.
HOSTS_VARIABLE = "DDP_DOCTOR_HOSTS"
#: SLURM numbers its special steps (interactive, batch, extern) from the maximum down (slurm/slurm.h): a user types in
#: these.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?", re.ASCII)


@dataclass(frozen=True)
class OuterWorld:
    """The world of the launcher that started ddp-doctor, as seen by this process."""

    launcher: Launcher
    local_rank: int
    local_size: int
    nnodes: int
    key: str  # equal on the processes of one node and one launch, and on no others

    @property
    def is_agent(self) -> bool:
        """True if this process has local rank 0 and so is its node's agent; the others wait for its exit code."""
        return self.local_rank == 0


def outer_world(env: Mapping[str, str], parent_pid: int) -> OuterWorld | None:
    """Return the world that this process is a rank of, or None if a user (or a script) started the command."""
    if HOSTS_VARIABLE in env:
        return None
    if "TORCHELASTIC_RUN_ID" in env and "LOCAL_RANK" in env:
        return _torchrun(env, parent_pid)
    if "OMPI_COMM_WORLD_RANK" in env:
        return _open_mpi(env, parent_pid)
    if "SLURM_PROCID" in env and number(env, "SLURM_STEP_ID", _FIRST_SPECIAL_STEP) < _FIRST_SPECIAL_STEP:
        return _slurm(env)
    return None


def number(env: Mapping[str, str], name: str, otherwise: int) -> int:
    """Return the value of a variable that is a plain number, or ``otherwise``."""
    text = env.get(name, "")
    return int(text) if re.fullmatch(r"\d{1,18}", text, re.ASCII) else otherwise


def _torchrun(env: Mapping[str, str], parent_pid: int) -> OuterWorld:
    """Return the world of a torchrun rank; its launch is known by torchrun's error directory, or by the parent process.

    The directory's form is ``…/RUN_ID_random/attempt_0/LOCAL_RANK/error.json`` (torch 2.13,
    torch/distributed/elastic/multiprocessing/api.py, DefaultLogsSpecs). If a script wraps the ranks, each of them has
    another parent.
    """
    attempt = Path(env.get("TORCHELASTIC_ERROR_FILE", "")).parent.parent
    launch = f"{attempt.parent.name}-{attempt.name}"
    if not re.fullmatch(r"attempt_\d{1,9}", attempt.name, re.ASCII):
        count = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        launch = f"{env['TORCHELASTIC_RUN_ID']}-{_pid_and_start(parent_pid)}-{count}"
    return OuterWorld(
        launcher="torchrun",
        local_rank=number(env, "LOCAL_RANK", 0),
        local_size=number(env, "LOCAL_WORLD_SIZE", 1),
        nnodes=number(env, "GROUP_WORLD_SIZE", 1),
        key=f"torchrun-{launch}",
    )


def _slurm(env: Mapping[str, str]) -> OuterWorld:
    nodes = number(env, "SLURM_STEP_NUM_NODES", number(env, "SLURM_NNODES", 1))
    restart = number(env, "SLURM_RESTART_COUNT", 0)  # a requeued job keeps its job and step id
    return OuterWorld(
        launcher="slurm",
        local_rank=number(env, "SLURM_LOCALID", 0),
        local_size=tasks_on(env.get("SLURM_STEP_TASKS_PER_NODE", ""), number(env, "SLURM_NODEID", 0)),
        nnodes=nodes,
        key=f"slurm-{env.get('SLURM_JOB_ID', '0')}-{env['SLURM_STEP_ID']}-{restart}",
    )


def tasks_on(listed: str, node_rank: int) -> int:
    """Return the tasks of one node from a list such as ``4(x3),2``: three nodes with 4, then one with 2."""
    for item in listed.split(","):
        found = _TASKS.fullmatch(item)
        if found is None:
            break
        node_rank -= int(found[2] or 1)
        if node_rank < 0:
            return int(found[1])
    return 1


def _open_mpi(env: Mapping[str, str], parent_pid: int) -> OuterWorld:
    local_size = number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)
    return OuterWorld(
        launcher="mpi",
        local_rank=number(env, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        local_size=local_size,
        nnodes=max(number(env, "OMPI_COMM_WORLD_SIZE", 1) // max(local_size, 1), 1),
        key=f"mpi-{env.get('PMIX_NAMESPACE') or _pid_and_start(parent_pid)}",  # a wrapped rank has another parent
    )


def _pid_and_start(pid: int) -> str:
    """Return the pid and start time of a process: pids are reused."""
    began = started(pid)
    return str(pid) if began is None else f"{pid}.{began}"
