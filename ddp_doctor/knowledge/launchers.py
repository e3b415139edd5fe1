"""The launchers that give a process its place in the world, and the variables that identify them."""

import re
from collections.abc import Mapping
from typing import Literal

from ddp_doctor.model.recording import Job

#: Launchers that start ranks and give each its place in their own variables.
Launcher = Literal["torchrun", "slurm", "mpi"]

#: Recorded in addition to the variables in the table, to identify the launcher of the process.
OTHERS = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NNODES",
    "SLURM_STEP_NUM_NODES",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)


#: The variable with the id of the job, by scheduler: man sbatch, PBS Professional User's Guide, LSF Command Reference,
#: flux-submit(1).
_JOB_IDS: Mapping[str, str] = {"slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID", "lsf": "LSB_JOBID", "flux": "FLUX_JOB_ID"}
#: 4711, 4711[3].server, ƒ2oM8ehUQQw
_JOB_ID = re.compile(r"[\w.\[\]-]{1,100}")


def job_of(env: Mapping[str, str]) -> Job | None:
    """Return the scheduler's job that this process belongs to, or None."""
    for scheduler, variable in _JOB_IDS.items():
        if _JOB_ID.fullmatch(env.get(variable, "")):
            return Job.model_validate({"scheduler": scheduler, "id": env[variable]})
    return None


def launcher_of(env: Mapping[str, str]) -> Launcher | None:
    """Return the launcher that started this process as a worker, or None. RANK may be left over."""
    if "TORCHELASTIC_RUN_ID" in env:
        return "torchrun"
    if "SLURM_STEP_ID" in env and "SLURM_PROCID" in env:
        return "slurm"
    return "mpi" if "OMPI_COMM_WORLD_RANK" in env else None
