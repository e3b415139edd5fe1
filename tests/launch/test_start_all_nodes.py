"""How one command starts the agents of all nodes: over ssh, by srun, or not at all."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_doctor.starters.detect import outer_world
from ddp_doctor.starters.place import Asked
from ddp_doctor.starters.start_all_nodes import StartedNodes, address_of, by_srun, is_here, over_ssh, start_all_nodes
from tests.lab.processes import to_its_end
from tests.launch.test_place import BATCH, INTERACTIVE, MPI_FIRST, SALLOC, STEP
from tests.words import pairs

HERE = socket.gethostname()


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    for name in ("srun", "ssh"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$0 $@"\n')
        (tmp_path / name).chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def started(asked: Asked, env: dict[str, str], *arguments: str) -> StartedNodes:
    found = start_all_nodes(asked, env, outer_world(env, 1), arguments)
    assert isinstance(found, StartedNodes)
    return found


def option(argv: tuple[str, ...], name: str) -> str:
    return argv[argv.index(name) + 1]


# --- SLURM ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [BATCH, SALLOC, INTERACTIVE], ids=["batch", "salloc", "interactive step"])
def test_a_command_typed_in_an_allocation_is_started_on_all_of_it(env, tools):
    found = started(Asked(), {**env, **tools}, "--level", "quick")
    argv = found.starts[0].argv

    assert found.hosts == tuple(f"fan{n}" for n in range(1, 4 if env is BATCH else 3))
    assert option(argv, "--nodelist") == ",".join(found.hosts)
    assert option(argv, "--nodes") == option(argv, "--ntasks") == str(len(found.hosts))
    assert "--overlap" in argv
    assert argv[-6:] == (sys.executable, "-m", "ddp_doctor", "run", "--level", "quick")
    assert found.starts[0].node_ranks == tuple(range(len(found.hosts)))
    assert found.starts[0].env["DDP_DOCTOR_STARTER_PIPE"] == "1"


def test_a_subset_is_the_first_hosts(tools):
    found = started(Asked(nnodes="2"), {**BATCH, **tools})

    assert found.hosts == ("fan1", "fan2")
    assert started(Asked(nnodes="1:8"), {**BATCH, **tools}).hosts == ("fan1", "fan2", "fan3")


def test_single_node_needs_no_srun_if_the_command_runs_on_it(tools):
    assert start_all_nodes(Asked(nnodes="1"), {**BATCH, **tools}, None, ()) == Asked(nnodes="1")
    assert start_all_nodes(Asked(nnodes="1:4"), {**BATCH, **tools, "SLURM_JOB_NODELIST": "fan1"}, None, ()) == Asked(
        nnodes="1"
    )
    assert started(Asked(nnodes="1"), {**SALLOC, **tools}).hosts == ("fan1",)


def test_typed_endpoint_is_passed_to_the_agents(tools):
    found = started(Asked(rdzv_endpoint="[fd00::1]:1234"), {**BATCH, **tools})

    assert found.starts[0].argv[-2:] == ("--rdzv-endpoint", "[fd00::1]:1234")
    assert found.endpoint == ("fd00::1", 1234)


@pytest.mark.parametrize("env", [{}, STEP, {**BATCH, **MPI_FIRST}], ids=["no job", "step", "mpirun in a job"])
def test_process_that_is_already_started_or_single_is_its_own_agent(env):
    asked = Asked(nnodes="2")

    assert start_all_nodes(asked, env, outer_world(env, 1), ()) is asked


def test_typed_node_rank_means_that_each_node_is_started_manually(tools):
    asked = Asked(nnodes="2", node_rank=1, rdzv_endpoint="fan1")

    assert start_all_nodes(asked, {**BATCH, **tools}, None, ()) is asked


@pytest.mark.parametrize(
    ("asked", "path", "sentence"),
    [
        (Asked(nnodes="4"), "", "--nnodes asks for 4 nodes, but SLURM job 2 has 3"),
        (Asked(), "/nowhere", "SLURM job 2 has 3 nodes, but srun is not on PATH"),
        (Asked(nnodes="0"), "", "invalid --nnodes"),
    ],
)
def test_impossible_request_to_an_allocation_is_one_sentence(asked, path, sentence, tools):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        start_all_nodes(asked, {**BATCH, **tools, **({"PATH": path} if path else {})}, None, ())


def test_srun_does_not_see_variables_that_would_change_the_step(tools):
    hidden = pairs("""
        SLURM_NTASKS_PER_NODE=8 SLURM_NTASKS=16 SLURM_CPUS_PER_TASK=4 SRUN_CPUS_PER_TASK=4 SLURM_GPU_BIND=single:1
        SLURM_CPU_BIND_TYPE=mask_cpu: SLURM_LABELIO=1 SLURM_EXACT=1 SLURM_HOSTFILE=/tmp/hosts
        SLURM_STEP_ID=4294967290 PET_NNODES=8 SLURM_WAIT=1
    """)
    shown = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf", "NCCL_DEBUG": "INFO", "SLURM_JOB_NODELIST": "a"}
    start = by_srun(["a"], ["x"], {**tools, **hidden, **shown})

    assert dict(start.env) == {**tools, **shown, "DDP_DOCTOR_STARTER_PIPE": "1"}


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ({}, ["--overlap"]),
        ({"SLURM_GPUS_PER_NODE": "8"}, ["--overlap"]),
        ({"SLURM_GPUS_PER_TASK": "1", "SLURM_TASKS_PER_NODE": "8(x2)"}, ["--overlap", "--gpus-per-node", "8"]),
        ({"SLURM_GPUS_PER_TASK": "a100:2", "SLURM_TASKS_PER_NODE": "3,2"}, ["--overlap", "--gpus-per-node", "a100:4"]),
        ({"SLURM_GPUS": "4"}, []),
    ],
)
def test_the_step_gets_the_jobs_gpus(env, options, tools):
    """Verified on SLURM 22.05 with gres/gpu: each of these gave every node the GPUs that the job has there."""
    argv = by_srun(["a", "b"], ["x"], {**tools, **env}).argv

    assert list(argv[argv.index("ddp-doctor") + 1 : -1]) == options


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "srun: error: Task launch for StepId=16.0 failed on node fan2: Communication connection failure",
            {"fan2": "SLURM could not start a task there: Communication connection failure"},
        ),
        (
            "slurmstepd-fan2: error: execve(): /x/python: No such file or directory",
            {"fan2": "SLURM could not start a task there: execve(): /x/python: No such file or directory"},
        ),
        ("slurmstepd-fan1: error: *** STEP 16.0 ON fan1 CANCELLED AT 2026-11-20T22:57:56 ***", {}),
        ("srun: error: Application launch failed: Communication connection failure", {}),
        ("srun: error: fan1: task 0: Killed", {}),
    ],
)
def test_messages_of_srun_about_a_node_are_understood(line, found, tools):
    assert by_srun(["fan1", "fan2"], ["x"], tools).explain(line) == found


# --- ssh --------------------------------------------------------------------------------------------


def test_hosts_are_started_over_ssh_and_this_one_without(tools, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/nowhere/ddp-doctor"])
    env = {**tools, "NCCL_DEBUG": "INFO", "HOME": "/root", "DDP_DOCTOR_KEEP": "0"}
    found = started(Asked(hosts=("admin@node7", HERE)), env, "--level", "quick")
    other, here = found.starts

    at = ["--rdzv-endpoint", "node7:29400", "--nnodes", "2", "--node-rank"]
    assert found.hosts == ("node7", HERE)
    assert here.argv == (sys.executable, "-m", "ddp_doctor", "run", "--level", "quick", *at, "1")
    assert here.env == {**env, "DDP_DOCTOR_STARTER_PIPE": "1", "DDP_DOCTOR_HOSTS": f"node7,{HERE}"}
    assert other.argv[0].endswith("/ssh")
    assert "BatchMode=yes" in other.argv
    assert "ConnectTimeout=10" in other.argv
    assert not [word for word in other.argv if "HostKey" in word]
    assert other.argv[-2] == "admin@node7"
    assert shlex.join([*at, "0"]) in other.argv[-1]
    assert "HOME" not in other.argv[-1]
    assert "DDP_DOCTOR_KEEP=0" in other.argv[-1]


def test_script_started_by_its_name_is_started_by_it_on_other_hosts(tools, monkeypatch, tmp_path):
    script = tmp_path / "ddp-doctor"
    script.touch()
    monkeypatch.setattr(sys, "argv", [str(script)])

    assert started(Asked(), {**BATCH, **tools}).starts[0].argv[-3:] == (sys.executable, str(script), "run")


def test_the_remote_script_survives_every_shell_and_every_value(tools, tmp_path):
    """The script passed to ssh is run by the shell of the remote user; here by sh."""
    env = {
        "NCCL_SOCKET_IFNAME": "^docker0,it's",
        "NCCL_ALGO": "$(touch planted) `id` \\",
        "TORCH_X": "a b",
        "WANDB_API_KEY": "secret",
        "TORCH_TOKEN": "secret",
        "NCCL_X": "two\nlines",
        "PET_NNODES": "2",
    }
    command = (sys.executable, "-c", "import os, json; print(os.getcwd(), json.dumps(dict(os.environ)))")
    folder = tmp_path / "my job's"
    folder.mkdir()
    (start,) = over_ssh(["node7"], [command], {**tools, **env}, str(folder))
    done = to_its_end(("sh", "-c", start.argv[-1]), {}, cwd=tmp_path, check=True)

    assert done.stdout.startswith(f"{folder} ")
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_ALGO", "TORCH_X"):
        assert repr(env[name])[1:-1].replace("\\'", "'") in done.stdout.replace("\\\\", "\\\\")
    assert not any(word in start.argv[-1] for word in ("secret", "two", "PET_"))
    assert not list(tmp_path.rglob("planted"))


def test_missing_directory_does_not_prevent_the_start(tools):
    (start,) = over_ssh(["node7"], [("echo", "here")], tools, "/nowhere/job")
    done = subprocess.run(("sh", "-c", start.argv[-1]), check=False, capture_output=True, text=True)

    assert (done.stdout, done.stderr, done.returncode) == ("here\n", "", 0)


def test_this_host_is_known_by_its_names_and_addresses():
    assert is_here(HERE)
    assert is_here("127.0.0.1")
    assert not is_here(f"somebody@{HERE}")
    assert not is_here("192.0.2.7")


def test_alias_of_the_ssh_configuration_is_resolved(tools, tmp_path):
    (tmp_path / "ssh").write_text('#!/bin/sh\n[ "$1" = -G ] && echo "user root\nhostname 10.1.2.3\nport 22"\n')

    assert address_of("gpu-box.invalid", tools) == "10.1.2.3"
    assert address_of("localhost", tools) == "localhost"
    assert address_of("gpu-box.invalid", {"PATH": "/nowhere"}) == "gpu-box.invalid"


def test_ssh_that_cannot_resolve_a_host_keeps_its_name(tools, tmp_path):
    (tmp_path / "ssh").write_text("no program")

    assert address_of("gpu-box.invalid", tools) == "gpu-box.invalid"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (Asked(hosts=("a", "b@a")), "host 'a' is listed twice"),
        (Asked(hosts=("a", "b"), nnodes="3"), "--nnodes asks for 3 nodes, but the host list has only 2"),
        (Asked(hosts=("a", "b"), node_rank=0), "--hosts assigns the node ranks itself; omit --node-rank"),
        (Asked(hosts=("a", "localhost")), "other hosts cannot reach this host by the name localhost"),
        (Asked(hosts=("a", "b"), rdzv_endpoint="a:0"), "a port from 1 to 65535"),
    ],
)
def test_impossible_list_is_one_sentence(asked, sentence, tools):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        start_all_nodes(asked, tools, None, ())


@pytest.mark.parametrize(("env", "launcher"), [(STEP, "srun"), (MPI_FIRST, "mpirun")])
def test_hosts_under_a_launcher_would_be_started_by_each_of_its_processes(env, launcher, tools):
    with pytest.raises(ValueError, match=f"run this command once, without {launcher}"):
        start_all_nodes(Asked(hosts=("a", "b")), {**env, **tools}, outer_world(env, 1), ())


def test_error_without_ssh_names_the_alternative():
    with pytest.raises(
        ValueError, match="--hosts requires ssh, which is not on PATH; run this command on each host instead"
    ):
        start_all_nodes(Asked(hosts=("a", "b")), {"PATH": "/nowhere"}, None, ())


def test_only_as_many_hosts_as_asked_for_are_started(tools):
    assert started(Asked(hosts=("a", "b", "c"), nnodes="1:2"), tools).hosts == ("a", "b")


def test_single_local_host_does_not_use_ssh(tools):
    assert start_all_nodes(Asked(hosts=(HERE,)), tools, None, ()) == Asked(nnodes="1")
