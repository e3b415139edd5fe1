"""The job that a node belongs to, and its connection to the head node."""

from unittest.mock import Mock

import pytest

from ddp_doctor.agents.roll_call import Job, NotMet, RollCall, job
from ddp_doctor.agents.store_client import NO_ANSWER, NO_HEAD, StoreLost
from ddp_doctor.starters.detect import Launcher
from ddp_doctor.starters.endpoint import Approach

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


@pytest.mark.parametrize(
    ("error", "until", "answer"),
    [(NO_ANSWER, float("inf"), "client"), (NO_ANSWER, 0.0, None), (NO_HEAD, float("inf"), None)],
)
def test_only_a_head_that_does_not_answer_yet_is_called_until_the_deadline(error, until, answer):
    roll_call = Mock(until=until, _call=Mock(side_effect=[StoreLost(error)] * 3 + ["client"]))
    try:
        assert RollCall._call_again(roll_call, Approach("connected")) == answer
    except NotMet:
        assert answer is None
        assert roll_call._call.call_count == 2
