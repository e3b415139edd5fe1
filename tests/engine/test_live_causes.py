"""Jobs that run, by looks at their ranks: what is named for each situation, and with which exit code."""

from typing import Any

import pytest

from ddp_doctor.app import redaction
from ddp_doctor.app.outcome import blank, judge
from ddp_doctor.engine.plan import Plan
from ddp_doctor.facts.live_job import (
    ChildSeen,
    Launched,
    LiveJobFact,
    LiveRankFact,
    Look,
    Meeting,
    Refused,
    Unacknowledged,
)
from ddp_doctor.model.choices import Confidence, Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Node, Options, Recording, World
from ddp_doctor.model.report import AttachReport
from tests.readings import collected

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
C10D, LOADER = f"{TORCH}/distributed/distributed_c10d.py", f"{TORCH}/utils/data/dataloader.py"


def script(line: int, function: str = "main") -> str:
    return f"/home/me/train.py:{line} in {function}"


def call(name: str, line: int = 20) -> tuple[str, ...]:
    wrapper = f"{TORCH}/distributed/c10d_logger.py:83 in wrapper"
    return (script(90, "<module>"), script(line), wrapper, f"{C10D}:3123 in {name}")


BACKWARD = (
    script(30),
    f"{TORCH}/_tensor.py:623 in Tensor.backward",
    f"{TORCH}/autograd/graph.py:979 in _engine_run_backward",
)
MEETS = (f"{TORCH}/distributed/elastic/rendezvous/static_tcp_rendezvous.py:67 in X.next_rendezvous",)
WAITS_FOR_DATA = (
    script(40),
    f"{LOADER}:733 in __next__",
    f"{LOADER}:1482 in _try_get_data",
    "<frozen selectors>:415 in select",
)
IN_WORKER = (
    script(40),
    f"{TORCH}/utils/data/_utils/worker.py:349 in _worker_loop",
    "/home/me/data.py:12 in __getitem__",
)
SAVES = (script(50), f"{TORCH}/serialization.py:967 in save", f"{TORCH}/serialization.py:1268 in _save")


def rank(
    number: int,
    *stacks: tuple[str, ...],
    state: str = "S",
    cpu: float = 0.0,
    queued: float = 0.0,
    switches: int = 0,
    gloo: tuple[int, ...] = (0, 0, 0, 0),
    **more: Any,
) -> LiveRankFact:
    """A rank in four looks over four seconds: it uses ``cpu`` cores, and waits for one in a share ``queued``.

    ``gloo``: what gloo's threads had run at each look.
    """
    four = stacks if len(stacks) > 1 else stacks * 4
    looks = tuple(
        Look(
            at_s=at * 4 / max(len(four) - 1, 1),
            state=state,
            cpu_s=cpu * at * 4 / max(len(four) - 1, 1),
            main_cpu_s=cpu * at * 4 / max(len(four) - 1, 1),
            main_queued_s=queued * at * 4 / max(len(four) - 1, 1),
            main_switches=switches * at,
            frames=frames,
            holds_gil=cpu + queued > 0.5,
            gloo_switches=gloo[min(at, 3)],
        )
        for at, frames in enumerate(four or ((),) * 4)
    )
    fields = {"job": "j", "host": "node1", "pid": 100 + number, "rank": number, "looks": looks, "groups": 1}
    return LiveRankFact(**{**fields, **more})


def waiting(*numbers: int, name: str = "all_reduce", line: int = 20, **more: Any) -> list[LiveRankFact]:
    return [rank(number, call(name, line), **more) for number in numbers]


RECEIVES = (*IN_WORKER, "/usr/lib/python3.11/socket.py:718 in readinto")
POLLS = (*IN_WORKER, "/opt/venv/lib/python3.11/site-packages/filelock/_api.py:300 in acquire")


def worker(cpu_s: float, switches: int = 0, frames: tuple[str, ...] = IN_WORKER) -> ChildSeen:
    first, last = (
        Look(at_s=at, state="S", cpu_s=cpu_s * at, main_switches=switches * at, frames=frames) for at in (0, 4)
    )
    return ChildSeen(pid=900, kind="loader", first=first, last=last)


def recording(*ranks: LiveRankFact, **about: Any) -> Recording:
    job = LiveJobFact(**{"job": "j", "host": "node1", "world_size": len(ranks), "watched_s": 4.0, **about})
    facts = [(None, job), *((fact.rank, fact) for fact in ranks)]
    readings = tuple(collected("attach", fact, rank=number) for number, fact in facts)
    return blank(Options(command="attach"), Plan(())).model_copy(update={"readings": readings})


EVALUATES = [(script(60), script(70, "evaluate"), f"{TORCH}/nn/modules/linear.py:{at} in forward") for at in range(4)]
COMPUTES = (script(61), "/opt/venv/lib/python3.11/site-packages/numpy/linalg/linalg.py:400 in solve")
ASKS = [(script(50),), (script(50), "/usr/lib/python3.11/genericpath.py:19 in exists"), (script(50),), (script(50),)]
TIES = [*waiting(0, 1), *waiting(2, 3, name="all_gather", line=25)]
AT_THE_GPU = [rank(at, (script(33),), over_nccl=True, waits_for_gpu=True, cpu=1.0) for at in range(4)]
BEHIND = Launched(operation="AllReduce", by_rank=((1, 4),), others=5)
AHEAD = Launched(operation="Broadcast", by_rank=((1, 1),), others=0)
TIED = Launched(operation="AllReduce", by_rank=((0, 5), (1, 4)))
MOVES: dict[str, Any] = {"cpu": 0.5, "switches": 400}
LATE = [
    rank(0, *[call("all_reduce")] * 3, (script(9),), **MOVES),
    rank(1, (script(9),), (script(9),), (script(9),), call("all_reduce"), **MOVES),
    rank(2, *[call("all_reduce")] * 4, **MOVES),
]
LOST = Unacknowledged(peer="10.0.0.2:4711", bytes=4096, retransmissions=5)

SITUATIONS: dict[str, tuple[list[LiveRankFact], dict[str, Any], list[str], list[int], int]] = {
    "a data loader whose worker sleeps": (
        [*waiting(0, 1, 2), rank(3, WAITS_FOR_DATA, children=(worker(0.0),))], {}, ["data-loader-stuck"], [3], 1),
    "a data loader whose worker is at work": (
        [*waiting(0, 1, 2), rank(3, WAITS_FOR_DATA, children=(worker(0.5),))], {}, ["others-wait-for-work"], [], 0),
    "a data loader whose worker is woken by its network": (
        [*waiting(0, 1, 2), rank(3, WAITS_FOR_DATA, children=(worker(0.0, 10, RECEIVES),))],
        {}, ["others-wait-for-work"], [], 0),
    "a data loader whose worker sleeps in a loop, or polls": (
        [*waiting(0, 1, 2), rank(3, WAITS_FOR_DATA, children=(worker(0.0, 40),))],
        {}, ["progress-not-known"], [], 3),
    "a data loader whose worker polls for a lock by a library": (
        [*waiting(0, 1, 2), rank(3, WAITS_FOR_DATA, children=(worker(0.0, 40, POLLS),))],
        {}, ["progress-not-known"], [], 3),
    "a data loader of which one worker polls, and another one works": (
        [*waiting(0, 1, 2), rank(3, WAITS_FOR_DATA, children=(worker(0.0, 40), worker(0.5)))],
        {}, ["others-wait-for-work"], [], 0),
    "an upload that wakes the rank now and then": (
        [rank(0, (script(50), "/usr/lib/python3.11/socket.py:718 in readinto"), switches=10), *waiting(1, 2, 3)],
        {}, ["progress-not-known"], [], 3),
    "a line that sleeps again and again": (
        [rank(0, (script(50),), switches=10), *waiting(1, 2, 3)], {}, ["stuck-outside-collective"], [0], 1),
    "a loop that asks for a file again and again": (
        [rank(0, *ASKS, cpu=1.0, state="R"), *waiting(1, 2, 3)], {}, ["progress-not-known"], [], 3),
    "a data set that sleeps in the rank itself": (
        [*waiting(0, 1, 2), rank(3, (*WAITS_FOR_DATA[:2], "/home/me/data.py:12 in __getitem__"))],
        {}, ["stuck-outside-collective"], [3], 1),
    "another collective on one rank": (
        [*waiting(0, 1, 3), *waiting(2, name="all_gather", line=25)], {}, ["collective-mismatch"], [2], 1),
    "another collective than the backward pass": (
        [*waiting(0), *(rank(at, BACKWARD) for at in (1, 2, 3))], {}, ["collective-mismatch"], [0], 1),
    "two halves in different collectives": (TIES, {}, ["collective-mismatch"], [], 1),
    "a root that may have gone on": (
        [*waiting(0), *waiting(1, 2, 3, name="broadcast", line=19)], {}, ["collective-mismatch"], [], 1),
    "different calls in a job with several groups": (
        [fact.model_copy(update={"groups": 2}) for fact in (*waiting(0), *waiting(1, 2, 3, name="barrier", line=25))],
        {}, ["cross-group-deadlock"], [], 1),
    "several groups, and all calls on the default one": (
        [fact.model_copy(update={"groups": 2, "default_group": True})
         for fact in (*waiting(0), *waiting(1, 2, 3, name="barrier", line=25))],
        {}, ["collective-mismatch"], [0], 1),
    "several groups, one rank in a call that was handed one": (
        [fact.model_copy(update={"groups": 2, "default_group": fact.rank > 0 or None})
         for fact in (*waiting(0), *waiting(1, 2, 3, name="barrier", line=25))],
        {}, ["cross-group-deadlock"], [], 1),
    "several groups, of which one is not known, and two calls on the default one": (
        [fact.model_copy(update={"groups": 2, "default_group": fact.rank < 3 or None})
         for fact in (*waiting(0, 1), *waiting(2, 3, name="barrier", line=25))],
        {}, ["collective-mismatch"], [], 1),
    "a receiver whose sender has gone on, or never sent": (
        [*waiting(0, 2, 3), *waiting(1, name="recv", line=25)], {}, ["collective-mismatch"], [], 1),
    "a root that others, who have given it their data, may have left": (
        [*waiting(0, name="gather", line=25), *waiting(1, 2, 3)], {}, ["collective-mismatch"], [], 1),
    "NCCL's counts of a rank that launched another collective": (
        AT_THE_GPU, {"launched": (BEHIND, AHEAD)}, ["collective-mismatch"], [1], 1),
    "NCCL's counts of a rank that launched one fewer, and whose GPU may compute": (
        AT_THE_GPU, {"launched": (BEHIND,)}, ["rank-behind"], [1], 3),
    "NCCL's counts of a rank that launched one fewer, and waits in a call of another group": (
        [*AT_THE_GPU[:1], *waiting(1, over_nccl=True), *AT_THE_GPU[2:]],
        {"launched": (BEHIND,)}, ["rank-behind"], [1], 1),
    "NCCL's counts of a rank that launched one more": (
        AT_THE_GPU, {"launched": (AHEAD,)}, ["rank0-only-collective"], [1], 1),
    "NCCL's counts of two ranks, one behind the other": (
        AT_THE_GPU[:2], {"launched": (TIED,)}, ["rank-behind"], [], 3),
    "NCCL's counts of another job's ranks": (
        AT_THE_GPU[:2], {"launched": (BEHIND.model_copy(update={"others": None}),)}, ["progress-not-known"], [], 3),
    "a loop at one line": (
        [*waiting(0, 2, 3), rank(1, (script(70, "spin"),), cpu=1.0, state="R")],
        {}, ["stuck-outside-collective"], [1], 1),
    "a loop that a busy machine gives little time": (
        [*waiting(0, 2, 3), rank(1, (script(70, "spin"),), cpu=0.05, queued=0.9, state="R")],
        {}, ["stuck-outside-collective"], [1], 1),
    "a lock": ([*waiting(0, 2, 3), rank(1, (script(70),))], {}, ["stuck-outside-collective"], [1], 1),
    "one in a barrier, the others asleep in their own code": (
        [*waiting(0, name="barrier"), *(rank(at, (script(70),)) for at in (1, 2, 3))],
        {}, ["rank0-only-collective"], [], 1),
    "a stopped rank": ([*waiting(0, 1, 3), rank(2, (script(70),), state="T")], {}, ["rank-stopped"], [2], 1),
    "a rank in a debugger": (
        [*waiting(0, 1, 3), rank(2, (script(70),), state="t", traced_by="gdb (pid 7)")], {}, ["rank-stopped"], [2], 1),
    "a frozen rank": ([*waiting(0, 1, 3), rank(2, call("all_reduce"), frozen=True)], {}, ["rank-stopped"], [2], 1),
    "a rank that was killed": (
        [*waiting(0, 1, 2), rank(3, (), state="Z", ended="SIGKILL")], {}, ["rank-gone"], [3], 1),
    "a rank that ended well": ([*waiting(0, 1, 2), rank(3, (), state="Z", ended="exit 0")], {}, ["rank-gone"], [], 1),
    "a rank that is not there": (waiting(0, 1, 2), {"world_size": 4, "missing": (3,)}, ["rank-gone"], [3], 1),
    "a rank that has left a job that gets on": (
        [rank(0, call("all_reduce"), BACKWARD, call("barrier"), cpu=0.3)],
        {"world_size": 2, "missing": (1,)}, [], [], 0)
        ,
    "a rank in the kernel": ([*waiting(0, 1, 3), rank(2, (script(70),), state="D")], {}, ["rank-in-kernel"], [2], 1),
    "all in one call, and a connection that loses data": (
        [*waiting(0, 1, 2), *waiting(3, unacknowledged=(LOST,))], {}, ["data-not-acknowledged"], [3], 1),
    "all in one call": (waiting(0, 1, 2, 3), {}, ["collective-stalled"], [], 1),
    "all of this host in one call": (waiting(0, 1), {"world_size": 4}, ["progress-not-known"], [], 3),
    "evaluation on rank 0": (
        [rank(0, *EVALUATES, cpu=1.0, state="R"), *waiting(1, 2, 3, name="barrier")],
        {}, ["others-wait-for-work"], [], 0),
    "a checkpoint that grows": (
        [rank(0, SAVES, SAVES[:2], cpu=0.3), *waiting(1, 2, 3, name="barrier")], {}, ["others-wait-for-work"], [], 0),
    "a checkpoint on storage that does not answer for long": (
        [rank(0, SAVES), *waiting(1, 2, 3, name="barrier")], {}, ["progress-not-known"], [], 3),
    "a checkpoint that the kernel writes out": (
        [rank(0, SAVES, state="D"), *waiting(1, 2, 3, name="barrier")], {}, ["progress-not-known"], [], 3),
    "a computation in C": (
        [rank(0, COMPUTES, cpu=1.0, state="R"), *waiting(1, 2, 3)], {}, ["progress-not-known"], [], 3),
    "a job that gets on": (
        [rank(at, call("all_reduce"), BACKWARD, cpu=0.5, switches=400) for at in range(4)], {}, [], [], 0),
    "a rank that comes last in three of four looks": (
        LATE, {}, ["others-wait-for-work"], [], 0),
    "a rank that comes last in two of four looks": (
        [*LATE[:1], rank(1, (script(9),), (script(9),), call("all_reduce"), call("all_reduce"), **MOVES), *LATE[2:]],
        {}, [], [], 0),
    "a rank that comes last, while others wait in their backward pass": (
        [rank(0, *[BACKWARD] * 4, **MOVES), LATE[1]], {}, ["others-wait-for-work"], [], 0),
    "a rank that is outside, while others compute their backward pass": (
        [rank(0, *[BACKWARD] * 4, **{**MOVES, "state": "R"}), LATE[1]], {}, [], [], 0),
    "gloo's transfers, without a change of the stack": (
        [rank(at, call("all_reduce"), switches=40) for at in range(4)], {}, [], [], 0),
    "ranks of which each sleeps in each step, on a machine that leaves them little time": (
        [rank(at, (script(50),), cpu=0.01, switches=100, gloo=(0, 90, 170, 260)) for at in range(4)], {}, [], [], 0),
    "stacks that are not read in time, of ranks that go from collective to collective": (
        [rank(at, gloo=(0, 90, 170, 260)) for at in range(4)], {}, [], [], 0),
    "data that comes in for long, in one collective": (
        [rank(at, call("all_reduce"), gloo=(0, 9, 9, 30)) for at in range(4)], {}, [], [], 0),
    "a lock, and ranks that began to wait between two looks": (
        [*waiting(0, 2, 3, gloo=(0, 0, 7, 7)), rank(1, (script(70),))], {}, ["stuck-outside-collective"], [1], 1),
    "a collective of NCCL that stands, beside a monitor that uses gloo": (
        waiting(0, 1, 2, 3, over_nccl=True, cpu=1.0, state="R", switches=40, gloo=(0, 9, 18, 27)),
        {}, ["collective-stalled"], [], 1),
    "NCCL's waits, which take a core": (
        waiting(0, 1, 2, 3, over_nccl=True, cpu=1.0, state="R", switches=40), {}, ["collective-stalled"], [], 1),
    "all ended during the looks, with code 0": (
        [rank(at, state="Z", ended="exit 0") for at in range(2)], {"ended": True}, [], [], 0),
    "all ended during the looks, with codes that nobody saw": (
        [rank(at, state="Z") for at in range(2)], {"ended": True}, ["job-ended"], [], 3),
    "all ended during the looks, one of them with an error": (
        [rank(0, state="Z", ended="exit 1"), rank(1, state="Z")], {"ended": True}, ["rank-gone"], [0], 1),
    "a rank that ended while the other ranks are not in a collective": (
        [rank(0, state="Z"), rank(1, (script(90),), cpu=0.5)], {}, ["progress-not-known"], [], 3),
    "all run no Python code": ([rank(0, state="R"), rank(1, state="R")], {}, ["progress-not-known"], [], 3),
    "a launcher at a closed port": (
        [rank(0, MEETS, numbered_by="order of starts")],
        {"meeting": Meeting(who="torchrun", endpoint="node0:29500", node=1, expected=2, answer="refused",
         waited_s=40)}, ["waits-for-nodes"], [], 1),
    "a launcher that has just found the port closed": (
        [rank(0, MEETS, numbered_by="order of starts")],
        {"meeting": Meeting(who="torchrun", endpoint="node0:29500", expected=2, answer="refused", waited_s=4)},
        ["waits-for-nodes"], [], 3),
    "a launcher that serves the endpoint alone": (
        [rank(0, MEETS, numbered_by="order of starts")],
        {"meeting": Meeting(who="torchrun", endpoint="localhost:1", expected=4, answer="served", came=1,
         waited_s=600)}, ["waits-for-nodes"], [], 3),
    "a launcher whose port another program has": (
        [rank(0, MEETS, numbered_by="order of starts")],
        {"meeting": Meeting(who="accelerate", endpoint="10.0.0.1:1", expected=2, answer="connected",
         server="nginx (pid 7)", waited_s=60)}, ["waits-for-nodes"], [], 1),
    "mpirun that waits for a login without an answer": (
        [rank(0, numbered_by="order of starts")],
        {"meeting": Meeting(who="mpirun", program="ssh node1 (pid 8)", answer="silent", waited_s=40)},
        ["waits-for-nodes"], [], 1),
    "srun that has started nothing": (
        [rank(0, numbered_by="order of starts")],
        {"meeting": Meeting(who="srun", waited_s=40)}, ["waits-for-nodes"], [], 3),
    "a launcher between two starts of its ranks": (
        [rank(0, (script(1),), numbered_by="order of starts")],
        {"meeting": Meeting(who="torchrun", waits=False)}, ["progress-not-known"], [], 3),
    "ranks that wait for others before the job begins": (
        waiting(0, 1, name="init_process_group"),
        {"world_size": 4, "meeting": Meeting(who="ranks", endpoint="10.0.0.1:1", answer="connected", waited_s=60)},
        ["waits-for-nodes"], [], 3),
    "waits for the GPU alone": (AT_THE_GPU, {}, ["progress-not-known"], [], 3),
    "stacks that may not be read": (
        [rank(at, refused=(Refused(door="stacks", why="kernel.yama.ptrace_scope is 1", grant="sudo sysctl x"),))
         for at in range(4)],
        {}, ["progress-not-known"], [], 3),
    "a stack that was not read in time at the last look, of a rank that has not run since": (
        [*waiting(0, 1, 3), rank(2, (script(70),), (script(70),), ())],
        {}, ["stuck-outside-collective"], [2], 1),
    "a stack that was not read in time at the last look, of a rank that ran": (
        [*waiting(0, 1, 3), rank(2, (script(70),), (script(70),), (), switches=5)],
        {}, ["progress-not-known"], [], 3),
    "all asleep in their own code": ([rank(at, (script(70),)) for at in range(4)], {}, ["progress-not-known"], [], 3),
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_keeps_a_job_waiting_is_named_and_no_innocent(situation: str):
    ranks, about, causes, culprits, code = SITUATIONS[situation]

    report = judge(recording(*ranks, **about)).report

    assert isinstance(report, AttachReport)
    assert [cause.name for cause in report.causes] == causes
    assert [culprit.rank for cause in report.causes for culprit in cause.culprits] == culprits
    assert report.exit_code == code, report.summary
    assert report.summary.startswith({0: ("Running: ", "Ended: "), 1: ("Stuck: ",), 3: ("Cannot tell: ",)}[code])


@pytest.mark.parametrize(
    ("situation", "said"),
    [
        ("a rank that comes last in three of four looks",
         "Running: Rank 1 (pid 101) is at train.py:9 in 3 of 4 samples, and ranks 0, 2 wait for it"),
        ("a rank that comes last in two of four looks", "Running: 3 of 3 ranks made progress in 4 s"),
        ("a data loader whose worker sleeps in a loop, or polls",
         ("Cannot tell: Rank 3 (pid 103) waits for data at train.py:40 (its data loader worker is at "
         "data.py:12) while ranks 0-2 wait: progress is unknown yet")),
    ],
)  # fmt: skip
def test_who_is_waited_for_is_told_with_its_line_and_nothing_that_is_not_proved(situation, said):
    ranks, about, *_ = SITUATIONS[situation]

    assert judge(recording(*ranks, **about)).report.summary == f"{said}."


def test_the_driver_of_ray_without_workers_is_no_rank():
    waits = (script(17), "/opt/venv/lib/python3.11/site-packages/ray/_private/worker.py:981 in get_objects")
    report = judge(recording(rank(0, waits, numbered_by="order of starts", groups=0))).report

    assert report.summary == "Cannot tell: Process 100 is at train.py:17 and in no process group."
    assert isinstance(report, AttachReport)
    assert report.causes[0].next_check == "ray status"


@pytest.mark.parametrize(
    ("situation", "said"),
    [
        ("a launcher at a closed port",
         "Stuck: torchrun (pid 100), node 1 of 2, waits for another node at node0:29500: the port is closed"),
        ("a launcher that serves the endpoint alone",
         "Cannot tell: torchrun (pid 100) waits for 3 other nodes at localhost:1: 1 of 4 nodes has come"),
        ("ranks that wait for others before the job begins",
         "Cannot tell: Ranks 0, 1 wait for ranks 2, 3 at 10.0.0.1:1"),
        ("all ended during the looks, with code 0", "Ended: 2 ranks exited with code 0 during the observation"),
    ],
)  # fmt: skip
def test_a_job_that_has_not_begun_or_has_ended_is_reported_as_such(situation, said):
    ranks, about, *_ = SITUATIONS[situation]

    assert judge(recording(*ranks, **about)).report.summary == f"{said}."


def test_processes_without_known_ranks_are_named_by_their_pids():
    unnumbered: dict[str, Any] = {"numbered_by": "order of starts"}
    report = judge(recording(*waiting(0, 2, **unnumbered), rank(1, (script(50),), **unnumbered))).report

    assert isinstance(report, AttachReport)
    assert report.findings[0].title.startswith("Process 101 never entered all-reduce at train.py:20")
    assert report.findings[0].detail.startswith("Processes 100, 102 wait in all-reduce")
    assert [one.pid for one in report.ranks if one.blamed] == [101]
    assert "rank 1" not in report.model_dump_json()


def test_where_stacks_do_not_tell_the_group_of_a_call_both_readings_are_given():
    report = judge(recording(*SITUATIONS["several groups, one rank in a call that was handed one"][0])).report

    assert report.findings[0].title.endswith("in different process groups, or in different collectives of one group")
    assert "Rank 0 waits in all-reduce at train.py:20; ranks 1-3 wait in barrier" in report.findings[0].detail


def test_what_nccl_counts_of_each_rank_stands_in_the_finding():
    report = judge(recording(*AT_THE_GPU, launched=(BEHIND, AHEAD))).report

    assert report.findings[0].title.endswith(": rank 1 called broadcast, rank 0 all-reduce")
    counts = "all-reduce 5 on ranks 0, 2, 3, 4 on rank 1; broadcast 1 on rank 1, none on ranks 0, 2, 3."
    assert counts in report.findings[0].detail


def test_the_process_to_look_at_is_named_in_the_command_to_paste():
    report = judge(recording(*SITUATIONS["a lock"][0])).report

    assert isinstance(report, AttachReport)
    [blamed] = [one for one in report.ranks if one.blamed]
    assert report.causes[0].next_check.startswith(f"py-spy dump --pid {blamed.pid} ")
    assert [remedy.commands for remedy in report.findings[0].remedies] == [(), ()]


def test_of_a_rank_that_stands_the_whole_stack_is_shown_and_what_the_kernel_says():
    frames = tuple(script(at, f"step{at}") for at in range(20))
    stands = rank(1, frames, kernel="read from the FIFO /data/in")

    texts = [evidence.text for evidence in judge(recording(*waiting(0, 2), stands)).report.findings[0].evidence]

    assert texts[1].endswith("stack: … > " + " > ".join(f"train.py:{at} in step{at}" for at in range(8, 20)))
    assert texts[2].endswith("kernel: waits in read from the FIFO /data/in")


def test_a_rank_that_stands_within_the_backward_pass_is_not_said_to_be_outside_of_it():
    within = (*BACKWARD, f"{TORCH}/autograd/function.py:315 in BackwardCFunction.apply", script(70))

    (finding,) = judge(recording(*(rank(at, BACKWARD) for at in (0, 1)), rank(2, within))).report.findings

    assert finding.title.startswith("Rank 2 (pid 102) never entered the collective of the backward pass at train.py:30")
    assert finding.title.endswith(": stuck at train.py:70")


def test_a_rank_outside_is_likely_and_not_proved_to_be_what_gpus_wait_for():
    """A GPU may still compute, and what it waits for shows nowhere."""
    (finding,) = judge(recording(*AT_THE_GPU[:3], rank(3, (script(70),)))).report.findings

    assert finding.title.startswith("Rank 3 (pid 103) never entered a collective on the GPU")
    assert finding.confidence is Confidence.LIKELY


@pytest.mark.parametrize(("use", "is_said"), [((100, 100), True), ((100, 3), False), ((), False)])
def test_a_gpu_that_is_busy_while_its_rank_waits_in_nccl_is_no_progress_and_that_is_said(use, is_said):
    job = recording(*waiting(0, 1, over_nccl=True, cpu=1.0, state="R", gpu_use=use), rank(2, (script(70),)))

    report = judge(job).report

    assert isinstance(report, AttachReport)
    assert [one.gpu_use for one in report.ranks] == [use, use, ()]
    assert [culprit.rank for cause in report.causes for culprit in cause.culprits] == [2]
    text = "The GPUs of ranks 0, 1 are busy (100%), which NCCL's kernels also cause while they wait, so"
    assert (text in report.findings[0].detail) == is_said


def test_of_several_jobs_each_is_judged_and_the_worst_decides():
    well = recording(*(rank(at, call("all_reduce"), BACKWARD, cpu=0.5) for at in range(2)))
    ill = recording(*waiting(0), rank(1, (script(70),), state="T"))
    moved = [reading.model_copy(update={"fact": {**(reading.fact or {}), "job": "other"}}) for reading in ill.readings]

    report = judge(well.model_copy(update={"readings": (*well.readings, *moved)})).report

    assert isinstance(report, AttachReport)
    assert report.exit_code == 1
    assert [cause.name for cause in report.causes] == ["rank-stopped"]
    assert [(one.job, one.rank, one.moves, one.blamed) for one in report.ranks] == [
        ("j", 0, True, False), ("j", 1, True, False), ("other", 0, False, False), ("other", 1, False, True)
    ]  # fmt: skip


def test_a_redacted_recording_gives_the_same_verdict_without_names():
    before = judge(recording(*SITUATIONS["a data loader whose worker sleeps"][0]))

    after = judge(redaction.redacted(before.recording))

    assert [finding.name for finding in after.report.findings] == ["data-loader-stuck"]
    text = after.recording.model_dump_json()
    assert "node1" not in text
    assert "/home/me" not in text
    assert "distributed_c10d.py" in text


# --- several hosts -----------------------------------------------------------------------------------

MEETING = "SLURM job 7, node1:29500"


def of_nodes(*parts: list[LiveRankFact] | str, key: str = MEETING, launcher: str = "ssh", size: int = 4) -> Recording:
    """What several hosts have read: ranks, or why there are none; "-" where there was nothing to look at."""
    readings: list[Reading] = []
    for node, part in enumerate(parts):
        host = f"node{node + 1}"
        if isinstance(part, str):
            status = Status.ABSENT if part == "-" else Status.FAILED
            readings.append(Reading(check="attach", status=status, node=node, reason=part))
            continue
        about = {"job": key, "host": host, "world_size": size}
        of_host = recording(*(one.model_copy(update={"job": key, "host": host}) for one in part), **about)
        readings += [reading.model_copy(update={"node": node}) for reading in of_host.readings]
    nodes = tuple(Node(node_rank=node, hostname=f"node{node + 1}") for node in range(len(parts)))
    world = World(nnodes=len(parts), launcher=launcher, nodes=nodes)
    return blank(Options(command="attach"), Plan(())).model_copy(update={"world": world, "readings": tuple(readings)})


REFUSED = "Permission denied (publickey)."
STANDS, LOOPS = rank(1, (script(70),)), rank(1, (script(70, "spin"),), cpu=1.0, state="R")
GOES_ON = [rank(at, call("all_reduce"), BACKWARD, cpu=0.5, switches=400) for at in range(2)]
FAR: dict[str, tuple[Recording, list[str], list[tuple[int | None, str | None]], int]] = {
    "a rank on another host outside of the collective": (
        of_nodes(waiting(0), [STANDS], waiting(2, 3)), ["stuck-outside-collective"], [(1, "node2")], 1),
    "other calls on two hosts": (
        of_nodes(waiting(0, 1), [*waiting(2), *waiting(3, name="all_gather")]),
        ["collective-mismatch"], [(3, "node2")], 1),
    "the minority of those that were seen, and a host that was not": (
        of_nodes(waiting(0, 1), waiting(2, name="all_gather"), REFUSED), ["progress-not-known"], [], 3),
    "a proved culprit, and a host that was not seen": (
        of_nodes(waiting(0), [rank(1, (script(70),), state="T")], REFUSED), ["rank-stopped"], [(1, "node2")], 1),
    "a loop that may wait for a host that was not seen": (
        of_nodes(waiting(0), [LOOPS], REFUSED), ["progress-not-known"], [], 3),
    "what was seen gets on, and a host was not seen": (of_nodes(GOES_ON, REFUSED), [], [], 3),
    "ranks on a host that nobody named": (of_nodes(waiting(0, 1)), ["progress-not-known"], [], 3),
    "a node of a job of SLURM without a rank": (
        of_nodes(waiting(0, 1), "-", launcher="slurm"), ["rank-gone"], [(2, "node2"), (3, "node2")], 1),
    "a host without a rank, where those that were not seen had their place": (
        of_nodes(waiting(0, 1), "-"), ["rank-gone"], [(2, "node2"), (3, "node2")], 1),
    "a host without a rank, and more that were not seen than it could have had": (
        of_nodes(waiting(0), waiting(1), "-"), ["progress-not-known"], [], 3),
    "data that another host's rank does not acknowledge": (
        of_nodes(waiting(0, unacknowledged=(LOST,)),
                 waiting(1, connections=(("10.0.0.2:4711", "10.0.0.1:9"),)), size=2),
        ["data-not-acknowledged"], [(0, "node1")], 1),
    "two jobs that each meet at an address of its own host": (
        of_nodes(waiting(0, 1), [rank(2, (script(70),), state="T"), *waiting(3)], key="127.0.0.1:29 net:[7]", size=2),
        ["collective-stalled", "rank-stopped"], [(2, "node2")], 1),
    "ranks without numbers, connected to a host that was not seen": (
        of_nodes(waiting(0, 1, numbered_by="order of starts", connections=(("10.0.0.1:9", "10.0.0.2:7"),)), size=2),
        ["progress-not-known"], [], 3),
}  # fmt: skip


@pytest.mark.parametrize("situation", FAR)
def test_on_several_hosts_the_culprit_is_named_with_its_host_and_no_rank_that_nobody_saw(situation: str):
    seen, causes, culprits, code = FAR[situation]

    report = judge(seen).report

    assert isinstance(report, AttachReport)
    assert [cause.name for cause in report.causes] == causes
    assert [(one.rank, one.node) for cause in report.causes for one in cause.culprits] == culprits
    assert report.exit_code == code, report.summary
    assert (REFUSED in report.summary) == (code == 3 and REFUSED in seen.model_dump_json())


def test_the_pair_of_a_connection_that_loses_data_is_named_across_hosts():
    report = judge(FAR["data that another host's rank does not acknowledge"][0]).report

    (culprit,) = report.findings[0].culprits
    assert (culprit.kind, culprit.peer_rank, culprit.peer_node) == ("pair", 1, "node2")
