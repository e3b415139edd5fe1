"""The SLURM templates on a real SLURM: prolog, health check and sbatch gate, on sick and on healthy nodes."""

import importlib.util
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_doctor import templates
from tests.lab.slurm import Job, Slurm, why_no_slurm

pytestmark = pytest.mark.lab

LOST = "ddp-doctor DD304: GPU 3 on {}: lost (it fell off the bus or does not respond)"
NOTHING = "#!/bin/sh\nexit 0\n"
PROLOG = "prolog.d/50-ddp-doctor.sh"
HEALTHCHECK = "ddp-doctor-healthcheck.sh"
TELL_SLURM = ("SCONTROL=\n", "SCONTROL=/usr/bin/scontrol\n")
LOG = "/var/log/{}.log"


@pytest.fixture(scope="module")
def prolog_cluster() -> Iterator[Slurm]:
    """Two nodes with the settings for a prolog that docs/how-to/slurm.md recommends."""
    yield from up(Prolog="/etc/slurm/prolog.d/*", PrologFlags="Alloc")


@pytest.fixture(scope="module")
def checked_cluster() -> Iterator[Slurm]:
    """Two nodes with the settings for a health check, every 2 s: with 1 s SLURM has no time for its pings."""
    yield from up(
        HealthCheckProgram=f"/etc/slurm/{HEALTHCHECK}", HealthCheckInterval="2", HealthCheckNodeState="IDLE,CYCLE"
    )


def up(**settings: str) -> Iterator[Slurm]:
    reason = why_no_slurm()
    if reason is not None:
        pytest.skip(reason)
    slurm = Slurm(nodes=2, **settings)
    slurm.script(f"etc/{PROLOG}", NOTHING)
    slurm.script(f"etc/{HEALTHCHECK}", NOTHING)
    with slurm:
        yield slurm


@pytest.fixture
def slurm(prolog_cluster: Slurm) -> Iterator[Slurm]:
    """The cluster with a prolog."""
    yield from as_new(prolog_cluster)


@pytest.fixture
def checked(checked_cluster: Slurm) -> Iterator[Slurm]:
    """The cluster with a health check."""
    yield from as_new(checked_cluster)


def as_new(cluster: Slurm) -> Iterator[Slurm]:
    """With healthy GPUs, nothing installed and nothing drained."""
    for node in cluster.nodes:
        cluster.plant_gpus(node)
    yield cluster
    cluster.script(f"etc/{PROLOG}", NOTHING)
    cluster.script(f"etc/{HEALTHCHECK}", NOTHING)
    for node in cluster.nodes:
        until_running_checks_end(cluster, node.name)  # it would drain the node of the next test
        if cluster.reason(node.name):
            cluster.undrain(node.name)
        for log in cluster.seen(node, "/var/log").iterdir():
            log.unlink()


def comes_to(slurm: Slurm, node: str, state: str) -> None:
    """A node whose job has just ended, or that SLURM has not pinged since, is not yet in its state."""
    slurm.wait_until(lambda: slurm.state(node) == state)


def install(slurm: Slurm, template: str, *edits: tuple[str, str], python: str = sys.executable) -> str:
    """Write a template to the location in its first lines; returns the path."""
    text = templates.text(template, python)
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    places = {"slurm-prolog": f"etc/{PROLOG}", "slurm-healthcheck": f"etc/{HEALTHCHECK}"}
    return str(slurm.script(places.get(template, f"{template}.sh"), text))


def log_of(slurm: Slurm, node: str, name: str) -> str:
    path = slurm.seen(slurm[node], LOG.format(name))
    return path.read_text() if path.exists() else ""


def nvidia_ml_py() -> str:
    spec = importlib.util.find_spec("pynvml")
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


def break_doctor(slurm: Slurm, node: str) -> None:
    """The doctor's own Python has no working nvidia-ml-py on this node: it cannot look at the GPUs."""
    broken = slurm.script("pynvml.py", 'raise ImportError("planted")\n')
    slurm[node].run(("mount", "--bind", broken, nvidia_ml_py()))


def mend_doctor(slurm: Slurm, node: str) -> None:
    slurm[node].run(("umount", nvidia_ml_py()))


def running(slurm: Slurm, node: str, name: str) -> set[str]:
    """Return the processes of this name on the node, without zombies."""
    lines = slurm[node].run(("ps", "-o", "pid=,stat=", "-C", name), check=False).stdout.splitlines()
    return {pid for pid, state in map(str.split, lines) if not state.startswith("Z")}


def until_running_checks_end(slurm: Slurm, node: str) -> None:
    """Wait for the current checks; on a busy machine the next one begins immediately."""
    begun = running(slurm, node, HEALTHCHECK[:15])
    slurm.wait_until(lambda: not begun & running(slurm, node, HEALTHCHECK[:15]))


# --- the prolog -----------------------------------------------------------------------------------


def test_prolog_drains_an_unhealthy_node_and_the_job_runs_on_another(slurm, measure):
    install(slurm, "slurm-prolog", TELL_SLURM)
    slurm.plant_gpus(slurm["node1"], "gpu_lost")

    submitted = time.monotonic()
    job = slurm.batch("hostname", "--gres=gpu:8")
    slurm.wait_until(lambda: job.field("Restarts") == "1")
    measure("from sbatch to the drain", time.monotonic() - submitted)

    assert slurm.reason("node1") == LOST.format("node1")
    assert slurm.reason("node2") == ""
    assert re.search(
        rf"^\S+ job {job.number} on node1: unhealthy: {re.escape(LOST.format('node1'))}$",
        log_of(slurm, "node1", "ddp-doctor-prolog"),
        re.MULTILINE,
    )
    assert list(slurm.seen(slurm["node1"], "/var/lib/ddp-doctor/runs").glob("*/recording.json"))
    # SLURM itself waits two minutes with a requeued job; an operator need not.
    slurm.run("scontrol", "update", f"job={job.number}", "StartTime=now")
    assert job.wait() == "COMPLETED"
    assert job.output == "node2\n"
    comes_to(slurm, "node1", "drained")
    comes_to(slurm, "node2", "idle")


def test_prolog_without_scontrol_keeps_the_reason_of_slurm(slurm):
    install(slurm, "slurm-prolog")
    slurm.plant_gpus(slurm["node1"], "gpu_lost")
    done = slurm.run("srun", "-w", "node1", "hostname")
    assert done.returncode != 0
    slurm.wait_until(lambda: slurm.reason("node1") == "Prolog error")
    assert LOST.format("node1") in log_of(slurm, "node1", "ddp-doctor-prolog")


def test_granted_gpus_that_the_driver_does_not_serve_drain_the_node(slurm):
    install(slurm, "slurm-prolog", TELL_SLURM)
    slurm.plant_gpus(slurm["node1"], "mismatch")
    assert slurm.run("srun", "-w", "node1", "--gres=gpu:8", "hostname").returncode != 0
    assert slurm.reason("node1").startswith("ddp-doctor DD301: GPUs of node1 are unusable")


def test_unsure_prolog_drains_no_node_and_the_job_runs(slurm):
    install(slurm, "slurm-prolog", TELL_SLURM)
    break_doctor(slurm, "node1")
    try:
        done = slurm.run("srun", "-w", "node1", "hostname")
    finally:
        mend_doctor(slurm, "node1")
    assert (done.returncode, done.stdout) == (0, "node1\n")
    assert slurm.reason("node1") == ""
    log = log_of(slurm, "node1", "ddp-doctor-prolog")
    assert "cannot import pynvml" in log
    assert "ddp-doctor could not decide (exit 3); the job may start" in log


def test_a_degraded_node_is_not_drained_and_the_job_runs(slurm):
    install(slurm, "slurm-prolog", TELL_SLURM)
    slurm.plant_gpus(slurm["node1"], "throttled")
    done = slurm.run("srun", "-w", "node1", "--gres=gpu:8", "hostname")
    assert (done.returncode, done.stdout) == (0, "node1\n")
    assert slurm.reason("node1") == ""
    lines = log_of(slurm, "node1", "ddp-doctor-prolog").splitlines()
    assert [line.partition(" on node1: ")[2].partition(" (")[0] for line in lines] == ["Degraded: GPU 3"]


def test_prolog_without_ddp_doctor_drains_no_node_and_the_job_runs(slurm):
    install(slurm, "slurm-prolog", TELL_SLURM, python="/opt/none/bin/python3")
    done = slurm.run("srun", "-w", "node1", "hostname")
    assert (done.returncode, done.stdout) == (0, "node1\n")
    assert slurm.reason("node1") == ""
    assert "could not be started (exit 127)" in log_of(slurm, "node1", "ddp-doctor-prolog")


@pytest.mark.serial  # compares the time of two jobs
def test_the_prolog_costs_a_healthy_job_about_a_second(slurm, measure):
    def job_s() -> float:
        started = time.monotonic()
        assert slurm.run("srun", "-w", "node2", "hostname").stdout == "node2\n"
        return time.monotonic() - started

    bare_s = min(job_s() for _ in range(3))
    install(slurm, "slurm-prolog", TELL_SLURM)
    with_prolog_s = min(job_s() for _ in range(3))
    measure("srun hostname without a prolog", bare_s)
    measure("the prolog, per job", with_prolog_s - bare_s)
    assert slurm.reason("node2") == ""
    assert with_prolog_s - bare_s < 5


# --- the health check -----------------------------------------------------------------------------


def test_health_check_drains_only_the_node_that_becomes_unhealthy(checked, measure):
    install(checked, "slurm-healthcheck")
    for node in checked.nodes:
        checked.wait_until(lambda node=node: running(checked, node.name, HEALTHCHECK[:15]))
        until_running_checks_end(checked, node.name)
    comes_to(checked, "node1", "idle")
    comes_to(checked, "node2", "idle")

    checked.plant_gpus(checked["node2"], "gpu_lost")
    started = time.monotonic()
    checked.wait_until(lambda: checked.reason("node2") != "")
    measure("from the fault to the drain, checked every 2 s", time.monotonic() - started)

    assert checked.reason("node2") == LOST.format("node2")
    comes_to(checked, "node2", "drained")
    comes_to(checked, "node1", "idle")
    assert checked.reason("node1") == ""
    assert f"node2: unhealthy: {LOST.format('node2')}" in log_of(checked, "node2", "ddp-doctor-healthcheck")


def test_repaired_node_that_was_resumed_stays_in_service(checked):
    path = install(checked, "slurm-healthcheck")
    checked.plant_gpus(checked["node2"], "gpu_lost")
    checked.wait_until(lambda: checked.reason("node2") != "")
    checked.plant_gpus(checked["node2"])
    until_running_checks_end(checked, "node2")
    checked.undrain("node2")
    comes_to(checked, "node2", "idle")
    checked["node2"].run(("env", "-i", "SLURMD_NODENAME=node2", path))  # SLURM's next check has its own time
    comes_to(checked, "node2", "idle")
    assert checked.reason("node2") == ""


def test_the_health_check_keeps_the_reason_that_a_person_gave(checked):
    checked.run("scontrol", "update", "nodename=node2", "state=drain", "reason=new fan, Ada")
    checked.plant_gpus(checked["node2"], "gpu_lost")
    install(checked, "slurm-healthcheck")
    name = "ddp-doctor-healthcheck"
    checked.wait_until(lambda: "is drained already" in log_of(checked, "node2", name))
    assert checked.reason("node2") == "new fan, Ada"


def test_unsure_health_check_drains_no_node(checked):
    install(checked, "slurm-healthcheck")
    break_doctor(checked, "node2")
    try:
        name = "ddp-doctor-healthcheck"
        checked.wait_until(lambda: "the node stays as it is" in log_of(checked, "node2", name))
    finally:
        mend_doctor(checked, "node2")
    comes_to(checked, "node2", "idle")
    assert checked.reason("node2") == ""


def test_the_health_check_without_scontrol_only_writes_its_log(checked, measure):
    path = install(checked, "slurm-healthcheck", ("SCONTROL=/usr/bin/scontrol", "SCONTROL="))
    checked.plant_gpus(checked["node2"], "gpu_lost")
    started = time.monotonic()
    done = checked["node2"].run(("env", "-i", "SLURMD_NODENAME=node2", path))
    measure("the health check", time.monotonic() - started)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert f"node2: unhealthy: {LOST.format('node2')}" in log_of(checked, "node2", "ddp-doctor-healthcheck")
    assert checked.reason("node2") == ""


# --- the sbatch gate ------------------------------------------------------------------------------


def gated(slurm: Slurm, gate: str, *before: str, options: tuple[str, ...] = ("-N1",)) -> Job:
    """Submit a batch script with the gate before its training."""
    return slurm.batch("\n".join(("set -euo pipefail", *before, f". {gate}", "srun echo trained")), *options)


def test_the_gate_lets_a_healthy_job_pass(slurm, measure):
    bare = slurm.batch("srun echo trained")
    started = time.monotonic()
    assert bare.wait() == "COMPLETED"
    bare_s, started = time.monotonic() - started, time.monotonic()
    job = gated(slurm, install(slurm, "slurm-gate"), options=("-N2", "--ntasks-per-node=4", "--gpus-per-task=2"))
    assert job.wait() == "COMPLETED", job.output
    measure("the gate on two nodes, level quick", time.monotonic() - started - bare_s)
    assert job.output.count("Healthy: ") == 1
    assert "on 2 nodes passed" in job.output
    assert job.output.endswith("trained\n")


def test_gate_stops_an_unhealthy_job_with_exit_code_1(slurm, measure):
    started = time.monotonic()
    job = gated(slurm, install(slurm, "slurm-gate"), "export GLOO_SOCKET_IFNAME=ib7")
    assert job.wait() == "FAILED"
    measure("the gate on one node, sick", time.monotonic() - started)
    assert job.field("ExitCode") == "1:0"
    assert "ERROR DD" in job.output
    assert "ib7" in job.output
    assert "ddp-doctor gate: unhealthy, the report is above; the job ends here" in job.output
    assert "trained" not in job.output


def test_gate_ends_a_hanging_ddp_doctor_and_the_job_continues(slurm):
    frozen = slurm.script("frozen", "#!/bin/sh\nexec sleep 1000\n")
    gate = install(slurm, "slurm-gate", ("limit_s=300", "limit_s=2"), python=str(frozen))
    job = gated(slurm, gate)
    assert job.wait() == "COMPLETED"
    assert "no answer within 2 s; the job goes on untested" in job.output
    assert job.output.endswith("trained\n")
    slurm.wait_until(lambda: not running(slurm, "node1", "sleep"))


@pytest.mark.parametrize(
    ("python", "note"),
    [
        ("/opt/none/bin/python3", "the nodes could not be tested (exit 127), see above; the job goes on"),
        ("/usr/bin/false", "unsure, see above; the job goes on"),  # exits 1, as Python without the package
    ],
)
def test_gate_without_ddp_doctor_prints_a_note_and_the_job_continues(slurm, python, note):
    job = gated(slurm, install(slurm, "slurm-gate", python=python))
    assert job.wait() == "COMPLETED"
    assert f"ddp-doctor gate: {note}\ntrained\n" in job.output


def test_gate_outside_of_a_job_reports_that_nothing_was_tested(slurm):
    gate = Path(install(slurm, "slurm-gate"))
    done = slurm["node1"].run(("sh", "-euc", f". {gate}; echo on"))
    assert (done.stdout, done.stderr.count("nothing was tested")) == ("on\n", 1)
