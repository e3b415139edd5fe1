"""The job that a node belongs to."""

import pytest

from ddp_doctor.agents.roll_call import Job, job
from ddp_doctor.starters.detect import Launcher

STEP = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("launcher", "env", "expected"),
    [
        ("slurm", STEP, Job("SLURM step 4711.0", True)),
        ("slurm", STEP | {"SLURM_HET_SIZE": "2"}, Job()),
        ("torchrun", STEP | {"TORCHELASTIC_RUN_ID": "train"}, Job("torchrun's run train", True)),
        ("mpi", {"PMIX_NAMESPACE": "prterun-node0-7@1"}, Job("mpirun's job prterun-node0-7@1", True)),
        ("ssh", {"DDP_DOCTOR_HOSTS": "node0,node1"}, Job("the run on node0,node1", True)),
        ("plain", {"SLURM_JOB_ID": "4711"}, Job("SLURM job 4711")),
        ("plain", {}, Job()),
        ("mpi", {}, Job()),
    ],
)
def test_job_is_taken_from_the_launcher(launcher: Launcher, env: dict[str, str], expected: Job):
    assert job(launcher, env) == expected


def test_only_a_launch_certainly_identifies_another_run():
    mine = Job("SLURM step 4711.0", True)

    assert mine.is_another("SLURM step 4712.0")
    assert not mine.is_another("SLURM step 4711.0")
    assert not mine.is_another("")
    assert not Job("SLURM job 4711").is_another("SLURM step 4712.0")
    assert not Job().is_another("SLURM step 4712.0")
