"""``run --plan``: prints the plan of a run without starting it."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.test_cli import doctor
from tests.schemas import refused

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-3]", "SLURMD_NODENAME": "node1"}
STEP = {**SLURM, "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[1-3]", "SLURM_STEP_NUM_NODES": "3"}


@pytest.fixture
def plan(asked, tmp_path):
    def planned(*args: str, **env: str):
        done = asked("run", "--plan", "--json", "-", *args, env=env, cwd=tmp_path)
        assert done.returncode == 0, done
        assert refused("run-plan", done.stdout) == []
        return json.loads(done.stdout)

    return planned


def test_plan_has_all_steps_in_the_order_of_a_run_with_their_cost(plan):
    found = plan("--hosts", "me@node1,node2", "--nproc-per-node", "2")

    assert [step["where"] for step in found["steps"]] == ["node", "nodes", "launcher", "rank", "afterwards"]
    assert found["steps"][1]["checks"] == ["roll_call", "consistency", "connectivity"]
    assert [node["hostname"] for node in found["nodes"]] == ["node1", "node2"]
    assert (found["launcher"], found["ranks_per_node"], found["most_seconds"]) == ("ssh", 2, 60.0)
    assert found["seconds"] == pytest.approx(sum(step["seconds"] for step in found["steps"]))
    assert found["node_minutes"] == pytest.approx(found["seconds"] * 2 / 60, abs=0.05)
    assert {"check": "user_model", "reason": "needs a model of yours: --model"} in found["not_run"]


def test_short_budget_skips_checks_with_a_reason(plan):
    found = plan("--budget", "2")

    assert "--budget" in {each["check"]: each["reason"] for each in found["not_run"]}["torchrun"]
    assert found["seconds"] <= 2


def test_nodes_and_leaves_come_from_the_slurm_job(plan, tmp_path):
    (tmp_path / "topology.conf").write_text("SwitchName=leaf1 Nodes=node[1-2]\nSwitchName=leaf2 Nodes=node3\n")
    slurm = {**SLURM, "SLURM_CONF": str(tmp_path / "slurm.conf")}

    assert [node["leaf"] for node in plan("--isolate", **slurm)["nodes"]] == ["leaf1", "leaf1", "leaf2"]
    assert [node["hostname"] for node in plan("--nnodes", "2", **slurm)["nodes"]] == ["node1", "node2"]


def test_isolation_precedes_the_ranks_with_the_rounds_of_healthy_nodes(plan):
    places = {tuple(step["checks"]): step for step in plan("--isolate", "--hosts", "n[1-8]", "--repeat", "3")["steps"]}
    isolation = places[("isolation",)]

    assert list(places)[2] == ("isolation",)
    assert isolation["where"] == "groups"
    assert isolation["rounds"] % 3 == 0
    assert isolation["rounds"] < isolation["rounds_with_one_bad"] < 2 * isolation["rounds"]
    assert isolation["seconds"] == isolation["rounds"]
    assert ("repeats",) not in places


def test_repeats_follow_the_ranks_outside_of_the_budget(plan):
    soak = plan("--isolate", "--repeat", "3", "--soak", "2", "--hosts", "n[1-8]")
    often = plan("--repeat", "40")
    both = plan("--repeat", "40", "--soak", "2")  # what is over first ends it

    assert [step["checks"] for step in soak["steps"]].index(["repeats"]) == len(soak["steps"]) - 2
    assert soak["steps"][-2]["seconds"] == 120
    assert soak["most_seconds"] == 60 + 120
    assert [step["seconds"] for step in both["steps"] if step["checks"] == ["repeats"]] == [40]
    assert [step["rounds"] for step in often["steps"] if step["checks"] == ["repeats"]] == [40]


def test_unnamed_nodes_are_counted(plan):
    assert [node["hostname"] for node in plan("--nnodes", "2")["nodes"]] == [None, None]


def test_only_the_first_node_of_an_srun_step_prints(asked):
    first, other = (asked("run", "--plan", env={**STEP, "SLURM_NODEID": at, "SLURM_PROCID": at}) for at in "01")

    assert "3 nodes by srun: node1, node2, node3." in first.stdout
    assert (other.returncode, other.stdout, other.stderr) == (0, "", "")


def test_plan_starts_no_process_and_does_not_import_torch(tmp_path):
    for name in ("ssh", "srun", "nvidia-smi"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "torch.py").write_text(f"open('{tmp_path}/started', 'w')\n")
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    for options, more in ((["--hosts", "nowhere1,nowhere2"], {}), ([], SLURM)):
        done = doctor("run", "--plan", *options, env={**env, **more})
        assert "nothing was started" in done.stdout, done
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--html", "x.html"], "--html does not apply to a plan"),
        (["--settings", "env:x"], "--settings env does not apply to a plan"),
        (["--output-format", "jsonl"], "--output-format jsonl does not apply to a plan"),
        (["--redact"], "--redact does not apply to a plan"),
        (["--only", "p2"], "unknown check 'p2'"),
        (["--nproc-per-node", "many"], "invalid --nproc-per-node 'many'"),
        (["--isolate"], "--isolate requires several nodes, but this run has one"),
        (["--hosts", "a,a"], "host 'a' is listed twice"),
        (["--nnodes", "0"], "invalid --nnodes"),
        (["--model", "nowhere:make"], "found no module 'nowhere'"),
        (["--json", "/nowhere/plan.json"], "cannot write '/nowhere/plan.json'"),
    ],
)
def test_plan_refuses_what_the_run_refuses(asked, args, sentence):
    done = asked("run", "--plan", *args)

    assert (done.returncode, done.stdout) == (2, ""), done
    assert sentence in done.stderr


def test_a_list_of_hosts_on_stdin_is_read_once(asked):
    done = asked("run", "--plan", "--hostfile", "-", text="node1\nnode2\n")

    assert "2 nodes over ssh: node1, node2." in done.stdout, done


def test_more_nodes_than_the_slurm_job_has_are_refused(asked):
    done = asked("run", "--plan", "--nnodes", "4", env=SLURM)

    assert done.returncode == 2
    assert "SLURM job 7 has 3" in done.stderr


def test_a_topology_that_names_no_host_of_the_run_is_refused(asked, tmp_path: Path):
    path = tmp_path / "racks"
    path.write_text("rack1: other[1-4]\n")
    done = asked("run", "--plan", "--isolate", "--topology", str(path), "--hosts", "node1,node2")

    assert done.returncode == 2
    assert "racks' does not list any of these hosts: node1 and node2" in done.stderr
