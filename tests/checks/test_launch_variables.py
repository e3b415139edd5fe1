"""The launcher of a process, and launch variables that contradict each other."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddp_doctor.checks.node.env_vars import launch
from ddp_doctor.checks.node.env_vars.launch import consequence, faults, missing
from ddp_doctor.knowledge import launchers
from ddp_doctor.knowledge.launchers import launcher_of

RANK_3_OF_8 = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def test_rank_variable_is_not_enough_to_identify_a_launcher():
    assert launcher_of(RANK_3_OF_8) is None
    assert launcher_of({"SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}) is None  # the batch script itself


def test_torchrun_precedes_its_slurm_step():
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}
    assert launcher_of(step) == "slurm"
    assert launcher_of({**step, "TORCHELASTIC_RUN_ID": "x"}) == "torchrun"
    assert launcher_of({"OMPI_COMM_WORLD_RANK": "0"}) == "mpi"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"RANK": "8"}, "RANK=8 is out of range with WORLD_SIZE=8: the last rank is 7"),
        ({"RANK": "-1"}, "RANK=-1 is out of range: ranks start at 0"),
        ({"RANK": "two"}, "RANK=two is not a number"),
        ({"WORLD_SIZE": "0", "RANK": ""}, "WORLD_SIZE=0 is out of range: the minimum is 1"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000 is out of range: the maximum is 65535"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT=0 lets each rank choose a different port"),
        ({"MASTER_ADDR": "http://node0"}, "MASTER_ADDR=http://node0 is not a bare host name or address"),
        ({"MASTER_ADDR": "node0:29500"}, "MASTER_ADDR=node0:29500 is not a bare host name or address"),
    ],
)
def test_variables_that_prevent_a_rendezvous_are_fatal(changed, text):
    assert [(fault.text, fault.fatal) for fault in faults({**RANK_3_OF_8, **changed}, "slurm") if fault.fatal] == [
        (text, True)
    ]


@pytest.mark.parametrize(
    ("changed", "launcher", "text"),
    [
        (
            {"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"}, "mpi",
            "LOCAL_RANK=4 is out of range with LOCAL_WORLD_SIZE=4: the last rank is 3",
        ),
        ({"LOCAL_WORLD_SIZE": "3"}, None, "WORLD_SIZE=8 is not a multiple of LOCAL_WORLD_SIZE=3"),
        (
            {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "4"}, None,
            "MASTER_ADDR=127.0.0.1 is a different machine on each node, but the job has 2 nodes",
        ),
        (
            {"MASTER_ADDR": "localhost", "SLURM_NNODES": "2", "SLURM_PROCID": "3"}, "slurm",
            "MASTER_ADDR=localhost is a different machine on each node, but the job has 2 nodes",
        ),
        ({"SLURM_PROCID": "5"}, "slurm", "RANK is 3, but the launcher set SLURM_PROCID=5"),
    ],
)  # fmt: skip
def test_contradictions_are_reported_but_not_fatal(changed, launcher, text):
    found = list(faults({**RANK_3_OF_8, **changed}, launcher))
    assert text in [fault.text for fault in found]
    assert not any(fault.fatal for fault in found)


def test_torchrun_may_start_different_numbers_of_workers_per_node():
    assert not list(faults({**RANK_3_OF_8, "WORLD_SIZE": "7", "LOCAL_WORLD_SIZE": "4"}, "torchrun"))


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"RANK": "3"}, "fails without WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        (RANK_3_OF_8, "joins as rank 3 of 8 at node0:29500"),
        ({**RANK_3_OF_8, "RANK": "9"}, "RANK=9 is out of range with WORLD_SIZE=8: the last rank is 7"),
        ({**RANK_3_OF_8, "RANK": "0", "WORLD_SIZE": "1"}, "a job with a single rank"),
        ({"LOCAL_RANK": "2"}, "one rank of a larger job"),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, "a store that only torchrun starts"),
    ],
)
def test_behavior_of_a_manually_started_script_is_described(env, words):
    assert words in consequence(env)


@given(
    st.dictionaries(
        st.sampled_from([*launch.NUMBERS, "MASTER_ADDR", *launchers.OTHERS]),
        st.one_of(st.integers(-5, 99999).map(str), st.text(alphabet=st.characters(codec="utf-8"), max_size=12)),
    ),
    st.sampled_from([None, "torchrun", "slurm", "mpi"]),
)
@example({"RANK": "0\x1f"}, None)
def test_any_launch_variables_give_printable_sentences(env, launcher):
    for fault in faults(env, launcher):
        assert fault.text.isprintable()
    assert consequence(env).isprintable()
    missing(env, launcher)
