"""Jobs that really hang, observed from outside; and processes that cannot be observed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_doctor.app import UsageError
from ddp_doctor.features.jobs.attach import AttachReport
from ddp_doctor.features.jobs.attach import use_case as attach
from ddp_doctor.features.jobs.live_frames import GLOO_WORKER
from ddp_doctor.features.jobs.sources import live_jobs, live_stacks
from ddp_doctor.features.jobs.sources.live_jobs import Host, JobOnHost, of_slurm
from ddp_doctor.features.jobs.sources.live_process import Candidate, below
from ddp_doctor.sources import proc
from tests.features.jobs.attach import RANKS
from tests.features.jobs.attach.stillness import wait_until_still
from tests.waiting import LIMIT_S, wait_until

#: The expected causes of each way, with their ranks.
NAMED = {
    "loader": [("data-loader-stuck", [2])],
    "other-collective": [("collective-mismatch", [1])],
    "lock": [("stuck-outside-collective", [1])],
    "stopped": [("rank-stopped", [0])],
    "killed": [("rank-gone", [2])],
    "moving": [],
}


def _tree() -> dict[int, list[int]]:
    tree: dict[int, list[int]] = {}
    for pid in sorted(proc.pids(), key=lambda pid: [*map(int, proc.stat_fields(pid)[19:20]), pid]):
        tree.setdefault(proc.parent(pid), []).append(pid)
    return tree


def _state(pid: int) -> str:
    """Return the state, with S instead of R: ranks that meet in a file poll it."""
    return proc.stat_fields(pid)[0].replace("R", "S")


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("worlds")
    command = [sys.executable, "-m", "tests.features.jobs.attach.worlds", str(folder), *NAMED]
    env = {**os.environ, "TMPDIR": str(folder)}  # multiprocessing's directories outlive killed processes
    with subprocess.Popen(command, env=env, start_new_session=True, stderr=subprocess.DEVNULL) as started:
        try:
            _wait_until_still(started.pid, folder)
            yield started.pid
        finally:
            os.killpg(started.pid, signal.SIGKILL)


def _wait_until_still(pid: int, folder: Path) -> None:
    """Wait until each rank has begun, and no main thread of the hanging jobs or of their data loaders runs."""
    wait_until(lambda: len([*folder.glob("*.[0-9]")]) >= RANKS * len(NAMED))
    tree = _tree()  # of the last two jobs, one makes progress, and in the other ranks poll the file of their store
    *hanging, killed, _ = tree[pid]
    wait_until_still((rank for job in hanging for rank in tree[job]), ended=tree[killed][2:])
    tree = _tree()  # with the workers of the data loaders
    wait_until_still(pid for job in hanging for pid in below(job, tree))


@pytest.mark.ranks
@pytest.mark.smoke
def test_hanging_jobs_are_distinguished_and_not_disturbed(worlds: int):
    jobs = _tree()[worlds]
    hanging = [pid for job in jobs[:-1] for pid in below(job, _tree())]
    before = {pid: _state(pid) for pid in hanging}

    report = attach.attach([worlds], how=attach.Watching(seconds=2.0)).report

    assert isinstance(report, AttachReport)
    assert report.exit_code == 1
    assert len(report.ranks) == RANKS * len(NAMED)
    number_of = {f"process {rank.pid}": rank.rank for rank in report.ranks}  # their ranks are unknown
    found = [(cause.name, [number_of[culprit.name or ""] for culprit in cause.culprits]) for cause in report.causes]
    assert sorted(found) == sorted(cause for causes in NAMED.values() for cause in causes)
    assert {one.job for one in report.ranks if one.moves} == {f"started by process {jobs[-1]}"}
    assert {pid: _state(pid) for pid in hanging} == before
    assert {proc.status(pid).get("TracerPid", "0") for pid in hanging} == {"0"}


@pytest.mark.ranks
def test_pid_of_any_process_of_a_job_selects_only_that_job(worlds: int):
    launcher = _tree()[worlds][list(NAMED).index("loader")]
    ranks = _tree()[launcher]
    (worker,) = _tree()[ranks[1]]
    host = Host()

    for pid in (launcher, ranks[1], worker):
        (job,) = (job for job in host.jobs() if host.is_about(job, pid))
        assert [one.pid for one in job.ranks.values()] == ranks


def test_process_or_job_without_ranks_is_refused_with_a_reason():
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(UsageError, match=rf"process {ended.pid} \(python\S*\) has exited; its parent"):
            attach.attach([ended.pid])
    with pytest.raises(UsageError, match="process 4194305 does not exist on this host"):
        attach.attach([4194305])  # above the largest possible pid
    with pytest.raises(UsageError, match="expected a job ID"):
        attach.attach(slurm_job="4711; true")
    with pytest.raises(UsageError, match="that belongs to SLURM job 999999999 and has torch loaded"):
        attach.attach(slurm_job="999999999")
    with subprocess.Popen(["sleep", "infinity"]) as other:
        with pytest.raises(UsageError, match=r"\(sleep\) nor any of its child processes has torch loaded"):
            attach.attach([other.pid])
        other.kill()


@pytest.mark.parametrize(
    ("own", "other", "scope", "said", "why", "grant"),
    [
        ({}, {"Uid": "1234\t1234"}, "0", "Permission denied", "it is a process of user 1234", "run this command as"),
        ({}, {}, "1", "Permission denied (os error 13)", "kernel.yama.ptrace_scope is 1", "ddp-doctor watch --"),
        ({}, {}, "2", "Operation not permitted", "kernel.yama.ptrace_scope is 2", "sysctl kernel.yama.ptrace_scope=0"),
        ({"CapEff": "80000"}, {}, "3", "denied", "kernel.yama.ptrace_scope is 3", "a boot with"),
        ({"Seccomp": "2"}, {}, "0", "denied", "a filter of system calls (seccomp)", "--cap-add=SYS_PTRACE"),
        ({}, {"CapPrm": "21"}, "0", "denied", "it has capabilities (CapPrm)", "as root, with CAP_SYS_PTRACE"),
        ({"NoNewPrivs": "1"}, {}, None, "denied", "the kernel closes it to its own user", "NoNewPrivs"),
        ({"Seccomp": "2"}, {}, None, "denied", "the kernel closes it to its own user", "run this command as root"),
        ({"CapEff": "80000"}, {}, "0", "denied", "the kernel refused it, although", "on the host"),
        ({}, {}, "0", "denied", "the kernel refused it", "on the host"),
        ({}, {}, "0", "Error: Failed to find a Python version", "Failed to find a Python version", ""),
    ],
)  # fmt: skip
def test_refused_stack_has_a_reason_and_a_way_to_allow_it(
    own: dict[str, str], other: dict[str, str], scope: str | None, said: str, why: str, grant: str,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    mine = {"Uid": f"{os.getuid()}\t{os.getuid()}", "CapEff": "0", "CapPrm": "0"}
    monkeypatch.setattr(proc, "status", lambda pid: {**mine, **(own if pid == os.getpid() else other)})
    monkeypatch.setattr(proc, "read", lambda _: scope and f"{scope}\n")

    refused = live_stacks.why_refused(1, said)

    assert refused.why.startswith(why)
    assert grant in refused.grant


@pytest.mark.parametrize(
    ("asked", "is_it"), [("4711", True), ("4711.0", True), ("4711.1", False), ("4712", False), ("4712.0", False)]
)
def test_slurm_job_matches_its_job_id_and_its_own_step_id(asked: str, is_it: bool):
    rank = Candidate(0, 1, 1, {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}, {}, ["train"])

    assert of_slurm(JobOnHost("job", {0: rank}, numbered_by="environment", children={0: []}), asked) is is_it


FAMILY = {"MASTER_ADDR": "node0", "MASTER_PORT": "29501", "NODE_RANK": "1", "WORLD_SIZE": "6"}


@pytest.mark.parametrize(
    ("environments", "ranks"),
    [
        pytest.param([{}, {"LOCAL_RANK": "1"}, {"LOCAL_RANK": "2"}], {0: 3, 1: 4, 2: 5}, id="Lightning's own launcher"),
        pytest.param([{}, {"LOCAL_RANK": "2"}], {0: 3, 1: 5}, id="a child has ended"),
        pytest.param([{}, {"LOCAL_RANK": "0"}, {"LOCAL_RANK": "1"}], {}, id="the parent is not a rank"),
        pytest.param([{}, {"LOCAL_RANK": "1", "RANK": "4"}], {}, id="children with a number"),
        pytest.param([{"RANK": "3"}, {"LOCAL_RANK": "1"}], {}, id="a rank with a number, and its helper"),
        pytest.param([{"LOCAL_RANK": "1"}, {"LOCAL_RANK": "1"}], {}, id="a local rank, and its helper"),
        pytest.param(
            [{"THREAD": GLOO_WORKER}, {"LOCAL_RANK": "0"}, {"LOCAL_RANK": "1"}],
            {0: 2, 2: 3},
            id="a helper of local rank 0",
        ),
    ],
)
def test_process_that_starts_local_ranks_from_1_is_local_rank_0(
    environments: list[dict[str, str]], ranks: dict[int, int]
):
    processes = {
        pid: Candidate(
            pid, 0 if pid else 99, pid, {**(FAMILY if pid else {}), **env}, {1: env.get("THREAD", "python")}, ["train"]
        )
        for pid, env in enumerate(environments)
    }

    families = live_jobs._families(processes)

    assert {parent: dict(family.ranks) for parent, family in families.items()} == ({0: ranks} if ranks else {})
    assert all(family.name == "node0:29501" for family in families.values())


@pytest.mark.parametrize(
    ("parents", "ranks", "parts"),
    [
        pytest.param([7, 7, 7, 7], [0, 1, 2, 3], [[1, 2, 3, 4]], id="one job"),
        pytest.param([7, 7, 8, 8], [0, 1, 2, 3], [[1, 2, 3, 4]], id="one job of two launchers"),
        pytest.param([1, 1, 8, 8], [0, 1, 0, 1], [[1, 2], [3, 4]], id="ranks of an earlier job with the same port"),
    ],
)
def test_each_rank_number_occurs_once_in_a_job(parents: list[int], ranks: list[int], parts: list[list[int]]):
    pids = [4194305 + at for at in range(4)]  # above the largest possible pid
    processes = [Candidate(pid, parent, 1, {}, {}, ["train"]) for pid, parent in zip(pids, parents, strict=True)]

    found = live_jobs._split("localhost:29500", processes, dict(zip(pids, ranks, strict=True)))

    assert [[process.pid - 4194304 for process in part] for _, part in found] == parts


def test_missing_py_spy_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    found = live_stacks.stacks([1], {"PATH": str(tmp_path)}, time.monotonic() + LIMIT_S)

    refused = found[1].refused
    assert refused is not None
    assert (refused.door, refused.grant) == ("stacks", "pip install py-spy")


def test_job_that_ends_during_the_observation_is_not_a_hang(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(attach, "_LOOKS", 1)
    with subprocess.Popen(["sleep", "infinity"]) as ends:
        one = Candidate(ends.pid, os.getpid(), 1, {"RANK": "0", "WORLD_SIZE": "1"}, {}, ["sleep"])
        job = JobOnHost("process", {0: one}, numbered_by="environment", children={0: []})
        monkeypatch.setattr(attach, "_chosen", lambda *_: [job])
        ends.kill()
        ends.wait()

        report = attach.attach([ends.pid]).report

    assert (report.exit_code, report.findings[0].name) == (3, "job-ended")


SITE = "/opt/env/lib/python3.11/site-packages"
WORKER_LOOP = [f"{SITE}/ray/_private/worker.py", f"{SITE}/ray/_private/workers/default_worker.py"]
TRAINS = [f"{SITE}/torch/distributed/distributed_c10d.py", "/home/me/train.py", f"{SITE}/ray/train/session.py"]


@pytest.mark.parametrize(
    ("threads", "chosen"),
    [
        pytest.param([WORKER_LOOP, ["/usr/lib/python3.11/threading.py"], TRAINS], 2, id="the thread below Ray's loop"),
        pytest.param([TRAINS, ["/home/me/log_writer.py"]], 0, id="the main thread, if it runs the job's code"),
        pytest.param([WORKER_LOOP, ["/usr/lib/python3.11/threading.py"]], 0, id="no thread runs the job's code"),
    ],
)
def test_stack_is_taken_from_the_thread_that_runs_the_jobs_code(threads: list[list[str]], chosen: int):
    dumped = [{"frames": [{"filename": file, "line": 1, "name": "f"} for file in files]} for files in threads]

    assert live_stacks._that_trains(dumped[0], dumped) is dumped[chosen]
