"""Who started this process: torchrun, a SLURM step, Open MPI, or a person.

A foreign world is recognised by the launcher's own marks, never by RANK alone: a leftover RANK in a
login shell is a finding, not a world.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Launcher = Literal["plain", "slurm", "torchrun", "kubernetes", "mpi", "ssh"]


@dataclass(frozen=True)
class ForeignWorld:
    """A launcher's world that the doctor was started in, as this process sees it."""

    launcher: Launcher
    local_rank: int
    local_size: int
    nnodes: int
    key: str  # equal on the processes of one node and one launch, and on no others

    @property
    def is_agent(self) -> bool:
        """The process with local rank 0 is its node's agent; the others wait for its verdict."""
        return self.local_rank == 0


def foreign_world(env: Mapping[str, str], parent_pid: int) -> ForeignWorld | None:
    """The world this process is a rank of, or None where a person (or a script) typed the command."""
    if "TORCHELASTIC_RUN_ID" in env and "LOCAL_RANK" in env:
        return _torchrun(env, parent_pid)
    if "SLURM_STEP_ID" in env and "SLURM_PROCID" in env:
        return _slurm(env)
    if "OMPI_COMM_WORLD_RANK" in env:
        return _open_mpi(env, parent_pid)
    return None


def _torchrun(env: Mapping[str, str], parent_pid: int) -> ForeignWorld:
    attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
    return ForeignWorld(
        launcher="torchrun",
        local_rank=_number(env, "LOCAL_RANK", 0),
        local_size=_number(env, "LOCAL_WORLD_SIZE", 1),
        nnodes=_number(env, "GROUP_WORLD_SIZE", 1),
        key=f"torchrun-{env['TORCHELASTIC_RUN_ID']}-{_process(parent_pid)}-{attempt}",
    )


def _slurm(env: Mapping[str, str]) -> ForeignWorld:
    nodes = _number(env, "SLURM_STEP_NUM_NODES", _number(env, "SLURM_NNODES", 1))
    restart = _number(env, "SLURM_RESTART_COUNT", 0)  # a requeued job keeps its job and step id
    tasks = env.get("SLURM_STEP_TASKS_PER_NODE", "1").partition("(")[0].partition(",")[0]
    return ForeignWorld(
        launcher="slurm",
        local_rank=_number(env, "SLURM_LOCALID", 0),
        local_size=int(tasks) if tasks.isdigit() else 1,
        nnodes=nodes,
        key=f"slurm-{env.get('SLURM_JOB_ID', '0')}-{env['SLURM_STEP_ID']}-{restart}",
    )


def _open_mpi(env: Mapping[str, str], parent_pid: int) -> ForeignWorld:
    local_size = _number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", 1)
    return ForeignWorld(
        launcher="mpi",
        local_rank=_number(env, "OMPI_COMM_WORLD_LOCAL_RANK", 0),
        local_size=local_size,
        nnodes=max(_number(env, "OMPI_COMM_WORLD_SIZE", 1) // max(local_size, 1), 1),
        key=f"mpi-{_process(parent_pid)}",
    )


def _process(pid: int) -> str:
    """The process and when it started (proc(5), stat, field 22): a pid alone comes round again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return str(pid)
    fields = stat.rpartition(")")[2].split()  # the name, field 2, may hold spaces and parentheses
    return f"{pid}.{fields[19]}" if len(fields) > 19 else str(pid)


def _number(env: Mapping[str, str], name: str, otherwise: int) -> int:
    text = env.get(name, "")
    return int(text) if text.isdigit() else otherwise
