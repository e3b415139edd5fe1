"""Which launch a node belongs to, so that two jobs on one port can be distinguished."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_doctor.starters.detect import HOSTS_VARIABLE, Launcher

#: What a launcher gives to all nodes of one launch, and to those of no other.
_KEYS = {
    "torchrun": ("torchrun's run", "TORCHELASTIC_RUN_ID"),
    "mpi": ("mpirun's job", "PMIX_NAMESPACE"),
    "ssh": ("the run on", HOSTS_VARIABLE),
}
_LONGEST = 255


@dataclass(frozen=True)
class Job:
    """``SLURM step 4711.0``, in words; empty where it is unknown."""

    name: str = ""
    is_launch: bool = False  # all nodes of a run have it in common; people may start one in two allocations

    def is_another(self, name: str) -> bool:
        """Whether a head of the launch ``name`` must belong to another run."""
        return self.is_launch and bool(name) and name != self.name


def job(launcher: Launcher, env: Mapping[str, str]) -> Job:
    """The job of this process, from what its launcher exported."""
    allocated = env.get("SLURM_JOB_ID", "") if "SLURM_HET_SIZE" not in env else ""  # each part has its own
    if launcher == "slurm":
        step = env.get("SLURM_STEP_ID", "")
        return Job(f"SLURM step {allocated}.{step}"[:_LONGEST], True) if allocated and step else Job()
    if launcher in _KEYS:
        what, variable = _KEYS[launcher]
        return Job(f"{what} {env[variable]}"[:_LONGEST], True) if env.get(variable) else Job()
    return Job(f"SLURM job {allocated}"[:_LONGEST]) if allocated else Job()
