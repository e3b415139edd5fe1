"""Findings for the output of launchers other than torchrun: Lightning, Ray Train, mpirun, srun, accelerate."""

from pathlib import Path

import pytest

from ddp_doctor.features.jobs.logs.use_case import logs
from ddp_doctor.model.report import Report

CLOSED = "[rank{}]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:9445\n"
LIGHTNING = "".join(f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/3\n" for rank in range(3))
REGISTERED = "All distributed processes registered. Starting with 3 processes\n" + "-" * 60 + "\n"
RAY = "".join(
    f"(TrainController pid=50) - (ip=10.0.0.1, pid={70 + rank}) world_rank={rank}, local_rank={rank}, node_rank=0\n"
    for rank in range(3)
)
RAISED = 'Traceback (most recent call last):\n  File "/home/me/train.py", line {}, in {}\n    step()\n'
FIT = RAISED.format(19, "<module>") + "ray.train.WorkerGroupError: Training failed due to worker errors:\n"
SNIPPET = "[Rank 1 Error Snippet]:\n"
DEAD = "Worker unexpectedly exits with a connection error code 2; Worker IP address: 10.0.0.1 Worker PID: {}"
DIED = "A worker health check failed.\nThe actor died unexpectedly before finishing this task.\n"
PING = "torch.distributed.DistNetworkError: Ping failed, invalid value returned from server. Expected: 16953, Got: {}\n"
KILLED = "mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed).\n"
STEPS = "step 1 loss 2.0\nstep 2 loss 1.9\n"
RESTARTED = (
    "E1123 04:31:09.690000 70 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9)"
    " local_rank: 1 (pid: 7) of binary: python\n"
    "I1123 04:31:09.690000 70 torch/distributed/elastic/agent/server/api.py:900] Worker group FAILED."
    " 3/3 attempts left; will restart worker group\nloading data\n"
)
DEFAULTS = (
    "The following values were not passed to `accelerate launch` and had defaults used instead:\n"
    "\t`--dynamo_backend` was set to a value of `'no'`\n"
    "To avoid this warning pass in values for each of the problematic parameters or run `accelerate config`.\n"
)
DEEPSPEED = (
    "[2026-11-29 21:28:05,967] [INFO] [launch.py:170:main] dist_world_size=3\n"
    + CLOSED.format(0)
    + CLOSED.format(2)
    + "[2026-11-29 21:28:06,412] [ERROR] [launch.py:259:sigkill_handler] ['python', '-u', 'train.py',"
    " '--local_rank=2'] exits with return code = -9\n"
)
TRIED = (
    "[W1129 21:01:28.106636040 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host node0:29500 -"
    " retrying (try=0, timeout=1800000ms, delay=4192ms): Interrupted system call\n"
    "Exception raised from delay at socket.cpp:113 (most recent call first):\n"
)
INTERRUPTED = (
    "srun: interrupt (one more within 1 sec to abort)\nsrun: sending Ctrl-C to StepId=1.0\n"
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 3, in <module>\nsrun: job abort in progress\n'
)
ENDS = "The end of the job is unknown: "
STARTS = "The job was still starting, or hangs during start: "
WAITS = f"{ENDS}its output has no line of a rank, as if it waits for other nodes"


def report_of(text: str, folder: Path) -> Report:
    (folder / "job.out").write_text(text)
    return logs([str(folder / "job.out")]).report


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (
            LIGHTNING + REGISTERED + CLOSED.format(0) + CLOSED.format(2),
            "Rank 1 exited without a message: rank 0 and rank 2 lost the connection",
        ),
        (LIGHTNING + REGISTERED, f"{ENDS}the output stops at “{REGISTERED.splitlines()[0]}”"),
        (LIGHTNING.splitlines()[0], f"{STARTS}rank 0 came to Lightning's start, and ranks 1, 2 did not"),
        (
            "\n".join(LIGHTNING.splitlines()[1:]),
            f"{STARTS}ranks 1, 2 came to Lightning's start, and the output does not show whether rank 0 did",
        ),
        ("INFO: [default] Rendezvous'ing worker group\n", f"{STARTS}torchrun waited at its rendezvous for other nodes"),
        (
            "srun: job 7 queued and waiting for resources\n" + STEPS + "srun: forcing job termination\n",
            "The job was stopped from outside: canceled, or a signal to its launcher",
        ),
        (RAY + FIT + SNIPPET + DIED, "Rank 1 (10.0.0.1) exited without a message: the driver lost the connection"),
        (DEAD.format(71), "Ray's worker 71 on 10.0.0.1 exited without a message: the driver lost the connection"),
        (RAY + DEAD.format(72), "Rank 2 (10.0.0.1) exited without a message: the driver lost the connection"),
        (
            RAY + FIT + SNIPPET + RAISED.format(7, "loop") + "ValueError: bad sample\n",
            "Rank 1 (10.0.0.1) stopped in /home/me/train.py:7 in loop: ValueError: bad sample",
        ),
        (
            RAY + "(RayTrainWorker pid=72) " + "\n(RayTrainWorker pid=72) ".join(RAISED.format(7, "f").splitlines())
            + "\n(RayTrainWorker pid=72) KeyError: 3\n",
            "Rank 2 (10.0.0.1) stopped in /home/me/train.py:7 in f: KeyError: 3",
        ),
        (
            RAY + RAISED.format(4, "main") + "KeyError: 'lr'\n",
            "The driver stopped in /home/me/train.py:4 in main: KeyError: 'lr'",
        ),
        (DEEPSPEED, "Rank 1 was killed by SIGKILL"),
        (DEEPSPEED.replace("size=3", "size=4"), "A process of the job was killed by SIGKILL"),
        (PING.format(1347703880), "A web server answers, not the job's store"),
        (PING.format(759714643), "An SSH server answers, not the job's store"),
        (PING.format(1313165391), "A server that says “OPEN” answers, not the job's store"),
        (PING.format(4), "Another job uses the same rendezvous"),
        (INTERRUPTED, "The job was interrupted with Ctrl-C (SIGINT)"),
        ("srun: forcing job termination\n", "The job was stopped from outside: canceled, or a signal to its launcher"),
        (STEPS + RESTARTED, "Local rank 1 was killed by SIGKILL"),
        (
            STEPS + RAISED.format(7, "main") + "ValueError: bad\ncompleted training\n",
            "A rank stopped in /home/me/train.py:7 in main: ValueError: bad",
        ),
        (
            f"UserWarning: slow\n{STEPS}Terminated\n",
            f"{ENDS}the output stops at “step 2 loss 1.9”, and the job may still run, hang or have been stopped",
        ),
        (TRIED, f"{STARTS}the rendezvous at node0:29500 did not answer"),
        (
            TRIED + STEPS + "stopping\nexit status 1\n",
            "The output ends with “exit status 1”: the cause is unknown",
        ),
        ("", WAITS),
        (DEFAULTS, WAITS),
    ],
)  # fmt: skip
def test_messages_of_launchers_identify_the_failed_rank_or_the_wait(text: str, title: str, tmp_path: Path):
    assert [finding.title for finding in report_of(text, tmp_path).findings] == [title]


def test_traceback_of_a_ray_actor_without_rank_does_not_fail_the_job(tmp_path: Path):
    lines = (RAISED.format(80, "_monitor_loop") + "ConnectionError: found multiple instances").splitlines()
    text = RAY + "".join(f"(PlacementGroupCleaner pid=51) {line}\n" for line in lines)

    assert report_of(f"{text}{STEPS}training finished\n", tmp_path).exit_code == 0


@pytest.mark.parametrize(("text", "command"), [(KILLED, "mpirun "), ("srun: error: n1: task 1: Killed\n", "srun ")])
def test_suggested_commands_match_the_launcher(text: str, command: str, tmp_path: Path):
    (finding,) = report_of(text.replace("Killed", "Aborted").replace("signal 9", "signal 6"), tmp_path).findings
    commands = [line for fix in finding.remedies for line in fix.commands]

    assert next(line for line in commands if line.startswith(("torchrun", "srun ", "mpirun "))).startswith(command)
    assert not any(line.startswith("torchrun") for line in commands)
