"""`ddp-doctor run` over the nodes of a real SLURM: under srun, and without it from a batch script or a shell."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ddp_doctor.model.finding import Setting
from ddp_doctor.render.pasted import sbatch_lines
from ddp_doctor.sources import proc
from tests.features.jobs.attach.stillness import wait_until_still
from tests.lab.hosts import ROOT, WITHOUT_DDP
from tests.lab.network_faults import loss
from tests.lab.processes import comm
from tests.lab.slurm import Slurm, why_no_slurm
from tests.render.reports import error, given_by, world

pytestmark = pytest.mark.lab

DOCTOR = (sys.executable, "-m", "ddp_doctor", "run", "--quiet", "--level", "quick")
TYPED = " ".join(DOCTOR)
SHORT = (*DOCTOR, *WITHOUT_DDP)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    reason = why_no_slurm()
    if reason is not None:
        pytest.skip(reason)
    with Slurm(nodes=3) as slurm:
        yield slurm


def hosts(report: Path) -> list[str]:
    return [node["hostname"] for node in json.loads(report.read_text())["world"]["nodes"]]


def doctors(slurm: Slurm, node: str) -> dict[int, str]:
    """The doctor's processes on a node: command line by process id outside of it. The agent comes first."""
    found = {}
    for pid in sorted(slurm[node].pids()):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(word in (b"ddp_doctor", b"-c") for word in words):
                found[pid] = b" ".join(words).decode(errors="replace")
    return {pid: line for pid, line in found.items() if "ddp_doctor" in line}


def nothing_runs(slurm: Slurm) -> bool:
    return not any(doctors(slurm, node.name) for node in slurm.nodes)


def test_srun_over_two_nodes_gives_one_report_and_one_exit_code(slurm, measure):
    started = time.monotonic()
    done = slurm.run("srun", "-N2", *SHORT, "--json", f"{slurm.folder}/srun.json")
    measure("srun -N2 ddp-doctor run", time.monotonic() - started)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Healthy: ") == 1
    assert "on 2 nodes passed" in done.stdout
    assert hosts(slurm.folder / "srun.json") == ["node1", "node2"]
    slurm.wait_until(lambda: nothing_runs(slurm))


def test_srun_runs_a_users_model_on_every_node_and_reports_the_wrong_rank(slurm):
    model = ("--only", "user_model", "--model", "tests.models.planted:hooked_on_one_rank")
    done = slurm.run(
        *("srun", "-N3", *DOCTOR, *model, "--nproc-per-node", "1"), *("--json", f"{slurm.folder}/model.json")
    )
    assert done.returncode == 1, done.stdout
    report = json.loads((slurm.folder / "model.json").read_text())
    (finding,) = [one for one in report["findings"] if one["severity"] != "info"]
    assert (finding["code"], [one["rank"] for one in finding["culprits"] if one["kind"] == "rank"]) == ("DD781", [1])
    slurm.wait_until(lambda: nothing_runs(slurm))


def test_run_in_a_batch_script_starts_on_all_nodes_and_reports_once(slurm, measure):
    started = time.monotonic()
    job = slurm.batch(f"{TYPED} --json {slurm.folder}/batch.json; echo exit $?", "-N2", "--ntasks-per-node=4")
    assert job.wait() == "COMPLETED"
    measure("ddp-doctor run in a batch script of two nodes", time.monotonic() - started)
    assert job.output.count("Healthy: ") == 1, job.output
    assert job.output.endswith("exit 0\n")
    assert hosts(slurm.folder / "batch.json") == ["node1", "node2"]


def test_run_in_an_salloc_shell_tests_the_first_nnodes_nodes(slurm):
    line = f"GLOO_SOCKET_IFNAME=ib7 {' '.join(SHORT)} --nnodes 2 --json {slurm.folder}/salloc.json; echo exit $?"
    done = slurm.run("salloc", "-N3", "sh", "-c", line)
    assert done.stdout.endswith("exit 1\n"), done.stdout
    assert done.stdout.count("Unhealthy: ") == 1
    assert "ib7" in done.stdout
    assert hosts(slurm.folder / "salloc.json") == ["node1", "node2"]


#: Taken from docs/how-to/many-nodes.md: srun rejects an empty list, and uses all nodes of the job by default.
WITHOUT_BAD = """
{doctor} --bad-nodes bad; echo exit $?
srun --nodes=$((SLURM_NNODES - $(wc -l < bad))) $([ -s bad ] && echo --exclude=./bad) {next}
"""


def test_node_lists_of_a_run_exclude_bad_nodes_from_the_next_step(slurm: Slurm):
    def batch(next_step: str) -> str:
        lines = WITHOUT_BAD.format(doctor=" ".join(SHORT), next=next_step)
        job = slurm.batch(f"cd {slurm.folder}; {lines}", "-N3")
        assert job.wait() == "COMPLETED", job.output
        return job.output

    with loss(slurm.lab, slurm["node2"]):
        said = batch(f"{' '.join(SHORT)} --good-nodes good")
        assert (slurm.folder / "bad").read_text() == "node2\n", said
        assert (slurm.folder / "good").read_text() == "node1\nnode3\n", said
    assert "exit 1" in said
    assert said.count("on 2 nodes passed") == 1
    slurm.wait_until(lambda: nothing_runs(slurm))

    good = f"{slurm.folder}/good"
    assert sorted(slurm.run("srun", f"--nodefile={good}", "uname", "-n").stdout.split()) == ["node1", "node3"]
    planned = slurm.run(*DOCTOR, "--plan", "--hostfile", good).stdout
    assert "2 nodes over ssh: node1, node3." in planned
    mapped = ("--hostfile", good, "--do-not-launch", "--display-map", "-n", "2", "true")
    assert re.findall(r"Data for node: (\w+)", slurm.run("mpirun", "--allow-run-as-root", *mapped).stdout) == [
        "node1",
        "node3",
    ]


def test_empty_list_of_bad_nodes_excludes_no_node(slurm):
    lines = WITHOUT_BAD.format(doctor=" ".join(SHORT), next="uname -n")
    job = slurm.batch(f"cd {slurm.folder}; {lines}", "-N3")

    assert job.wait() == "COMPLETED", job.output
    assert (slurm.folder / "bad").read_bytes() == b""
    assert sorted(job.output.splitlines()[-3:]) == ["node1", "node2", "node3"]


def test_plan_in_a_batch_script_lists_nodes_and_leaf_switches_without_a_step(slurm):
    (slurm.etc / "topology.conf").write_text("SwitchName=leaf1 Nodes=node[1-2]\nSwitchName=leaf2 Nodes=node3\n")
    try:
        job = slurm.batch(f"{TYPED} --isolate --plan; squeue --steps --noheader --format %i", "-N3")
        assert job.wait() == "COMPLETED", job.output
        stepped = slurm.run("srun", "-N2", *DOCTOR, "--plan").stdout
    finally:
        (slurm.etc / "topology.conf").unlink()
    assert "3 nodes by srun: node1, node2, node3." in job.output
    assert "on leaf1: node1, node2" in job.output
    assert [line for line in job.output.splitlines() if re.fullmatch(r"\d+\.\d+", line)] == []
    assert stepped.count("2 nodes by srun: node1, node2.") == 1, stepped


def test_node_whose_task_cannot_start_is_reported(slurm, measure):
    python = os.path.realpath(sys.executable)
    slurm["node2"].run(("mount", "--bind", "/dev/null", python))
    try:
        started = time.monotonic()
        done = slurm.run("srun", "-N2", *SHORT, "--join-timeout", "5")
        measure("a node without a Python, join time-out 5 s", time.monotonic() - started)
    finally:
        slurm["node2"].run(("umount", python))
    assert done.returncode != 0
    assert done.stdout.count("Unhealthy: node2 did not check in (not started or cannot reach") == 1, done.stdout


def test_agent_that_dies_during_the_run_is_reported_with_exit_code_1(slurm, measure):
    job = slurm.batch(f"{sys.executable} -m ddp_doctor run; echo exit $?", "-N2")
    slurm.wait_until(lambda: any(comm(pid).startswith("ddp-doctor:r") for pid in slurm["node2"].pids()))
    agent = next(pid for pid, line in doctors(slurm, "node2").items() if " run" in line)
    os.kill(agent, signal.SIGKILL)
    started = time.monotonic()
    assert job.wait() == "COMPLETED", job.output
    measure("from the death of an agent to the exit", time.monotonic() - started)
    assert job.output.count("Unhealthy: Contact with node2 was lost") == 1, job.output
    assert job.output.endswith("exit 1\n")
    slurm.wait_until(lambda: nothing_runs(slurm))


def test_agent_killed_before_check_in_is_reported_immediately(slurm, measure):
    job = slurm.batch(f"{' '.join(SHORT)} --join-timeout 600; echo exit $?", "-N2")
    slurm.wait_until(lambda: bool(doctors(slurm, "node2")))
    os.kill(min(doctors(slurm, "node2")), signal.SIGKILL)
    started = time.monotonic()
    assert job.wait() == "COMPLETED", job.output
    measure("from the death of an agent before the roll call to the exit", time.monotonic() - started)
    assert job.output.count("Unhealthy: node2 could not be started: ") == 1, job.output
    assert "srun says: Killed" in job.output
    assert job.output.endswith("exit 1\n")
    slurm.wait_until(lambda: nothing_runs(slurm))


# --- the settings in a batch script -------------------------------------------------------------------

SETTINGS = sbatch_lines(
    given_by(
        error(Setting(name="NCCL_IB_HCA", value="=mlx5 0'1"), Setting(name="NCCL_DEBUG", action="unset")),
        error(
            Setting(name="NCCL_SOCKET_IFNAME", value="=eth1", node="node1"),
            Setting(name="NCCL_SOCKET_IFNAME", value="=eth2", node="node2"),
            code="DD602",
        ),
        on=world("node1", "node2"),
    )
)
AS_PRINTED = re.findall(r"so call: (srun sh -c .* sh) PROGRAM ARGUMENTS", SETTINGS)[0]
SHOW = "sh -c 'echo $(uname -n) $NCCL_SOCKET_IFNAME $NCCL_IB_HCA ${NCCL_DEBUG-unset}'"


def test_lines_for_a_batch_script_set_the_value_of_each_tasks_host(slurm):
    lines = f"export NCCL_DEBUG=INFO\n{SETTINGS}{AS_PRINTED} {SHOW}"
    job = slurm.batch(lines, "-N2", "--ntasks-per-node=2")
    assert job.wait() == "COMPLETED", job.output
    nodes = (("node1", "=eth1"), ("node1", "=eth1"), ("node2", "=eth2"), ("node2", "=eth2"))
    assert sorted(job.output.splitlines()) == [f"{node} {name} =mlx5 0'1 unset" for node, name in nodes]


@pytest.mark.parametrize("export", ["NONE", "HOME"])
def test_a_job_submitted_without_its_environment_needs_the_line_that_the_comment_names(slurm, export):
    hint = re.findall(r"only after: (export SLURM_EXPORT_ENV=ALL)\n", SETTINGS)[0]
    show = "srun /bin/sh -c 'echo ${NCCL_IB_HCA-none}'"
    job = slurm.batch(f"{SETTINGS}{show}\n{hint}\n{show}", "-N1", f"--export={export}")
    assert job.wait() == "COMPLETED", job.output
    assert job.output.splitlines() == ["none", "=mlx5 0'1"]


#: Counts the SIGTERMs that it is sent, and fails. It writes each line in one piece: the tasks share an output.
TERMINATED = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.write(1, b"ready\\n")
count = 0
while signal.sigtimedwait({signal.SIGTERM}, 1.0 if count else 600) is not None:
    count += 1
task = os.environ["SLURM_PROCID"]
os.write(1, f"task {task} was sent SIGTERM {count} times, below {os.getppid()}\\n".encode())
sys.exit("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB")
"""


def test_one_watcher_per_node_of_a_step_explains_the_end(slurm):
    (slurm.folder / "terminated.py").write_text(TERMINATED)
    watch = f"{sys.executable} -m ddp_doctor watch --keep-output -- {sys.executable} -S"
    job = slurm.batch(f"XDG_STATE_HOME={slurm.folder}/state srun -N1 -n2 {watch} {slurm.folder}/terminated.py", "-n2")
    slurm.wait_until(lambda: job.output.count("ready") == 2)

    slurm.run("scancel", "--signal=TERM", job.number)

    assert job.wait() == "FAILED"
    said = job.output
    below = re.findall(r"task (\d) was sent SIGTERM 1 times, below (\d+)", said)
    assert sorted(task for task, _ in below) == ["0", "1"], said
    assert len({parent for _, parent in below}) == 2, "task 0 runs below the watcher, task 1 as without one"
    assert said.count("ddp-doctor: watching ") == 1
    assert said.count("Failed: GPU is out of memory: 2.00 GiB requested.") == 1, said


def test_attach_and_watch_read_all_nodes_of_a_job_whose_step_has_all_gpus(slurm):
    settings = f"export PYTHONPATH={ROOT} OMP_NUM_THREADS=1 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500"
    watch = f"XDG_STATE_HOME={slurm.folder}/state srun {sys.executable} -m ddp_doctor watch --stuck-after 10 --"
    job = slurm.batch(
        f"{settings}; {watch} {sys.executable} -m tests.features.jobs.attach.spread", "-N2", "-n2", "--gpus=16"
    )
    try:
        slurm.wait_until(lambda: job.output.count("begun") == 2)
        wait_until_still(
            pid for pid in proc.pids() if proc.command(pid)[1:] == ["-m", "tests.features.jobs.attach.spread"]
        )
        report = slurm.folder / "attach.json"
        attach = (*DOCTOR[:3], "attach", "--json", str(report), "--slurm-job")
        done = slurm.run(*attach, job.number)
        unknown = slurm.run(*attach, "4000000")
        slurm.wait_until(lambda: "Stuck: " in job.output)
    finally:
        slurm.run("scancel", job.number)
    assert done.returncode == 1, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert [(one["rank"], one["node"]) for of in found["findings"] for one in of["culprits"]] == [(1, "node2")]
    assert unknown.returncode == 2
    assert (
        unknown.stderr
        == "ddp-doctor: SLURM has no record of job 4000000: the job ID is wrong, or the job ended too long ago\n"
    )
    job.wait()
    told = re.findall(r"ddp-doctor: Stuck: Rank 1 \(pid \d+ on node2\) never entered all-reduce", job.output)
    assert len(told) == job.output.count("Stuck: ") == job.output.count("ddp-doctor: watching ") == 1, job.output
