"""One command for all nodes reads its agents' messages and leaves no agent behind. The agents are stand-ins."""

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_doctor.ranks import process
from ddp_doctor.starters import fanout, started_process
from ddp_doctor.starters.fanout import Ended, FanOut, Readers
from ddp_doctor.starters.start_all_nodes import ends_by_host
from ddp_doctor.starters.started_process import Start
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.ranks

AGENT = """
import os, signal, sys
from pathlib import Path
from ddp_doctor.starters import starter_channel
from ddp_doctor.starters.interruption import Interrupted, interruptible
from ddp_doctor.starters.starter_channel import StarterChannel
from tests.waiting import wait_forever, wait_until

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
(folder / f"pid{rank}").write_text(str(os.getpid()))
starter = starter_channel.take(dict(os.environ))
wire = StarterChannel(rank)

def work():
    {work}

with interruptible() as interruption:
    try:
        interruption.arm()
        wire.send("hello")
        work()
    except Interrupted:
        wire.send_recording(f"partial {rank}")
        wire.send("done", "130")
        os._exit(130)
wire.send("done", "1")
(folder / f"heard{rank}").write_text(str(starter.wait_until_heard()))
os._exit(1)
"""
HEAD = "wire.send('progress', 'p2p'); wire.send_recording('verdict')"
WAIT = "(folder / f'ready{rank}').touch(); wait_forever()"
MUTE = Start("ssh b", ("sleep", "infinity"), os.environ, (1,))
REFUSED = "sys.stderr.write('root@b: Permission denied\\n'); os._exit(255)"


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., list[Start]]:
    def made(*works: str) -> list[Start]:
        return [
            Start(
                name=f"agent {rank}",
                argv=(sys.executable, "-c", AGENT.replace("{work}", work), str(rank), str(tmp_path)),
                env={**os.environ, "DDP_DOCTOR_STARTER_PIPE": "1"},
                node_ranks=(rank,),
            )
            for rank, work in enumerate(works)
        ]

    return made


def ended(starts: list[Start]) -> tuple[Ended, list[str]]:
    told: list[str] = []
    return FanOut(starts, ["a", "b", "c"], told.append, LIMIT_S).run(), told


def out_of_time(fan_out: FanOut, *conditions: Callable[[], object]) -> Ended:
    """Run the agents. Their deadline, and then the grace period, expires under the next condition."""

    def expire() -> None:
        for condition in conditions:
            wait_until(condition)
            fan_out._until = 0.0

    threading.Thread(target=expire, daemon=True).start()
    seen = fan_out.run()
    assert seen.timed_out
    return seen


def signal_when_ready(folder: Path, ranks: int, *numbers: signal.Signals) -> None:
    """Signal this process once all ``ranks`` are at work, and again each time one of them has exited."""

    def send() -> None:
        wait_until(lambda: len(list(folder.glob("ready*"))) >= ranks)
        sent: list[int] = []
        for number in numbers:
            wait_until(lambda: len(alive(folder)) <= ranks - len(sent))
            os.kill(os.getpid(), number)
            sent.append(number)

    threading.Thread(target=send, daemon=True).start()


def alive(folder: Path) -> list[str]:
    pids = {path.name: int(path.read_text() or 0) for path in folder.glob("pid*")}
    return [name for name, pid in pids.items() if process.state(pid) not in (None, "Z")]


def test_recording_and_progress_of_the_head_are_received(start, tmp_path):
    seen, told = ended(start(HEAD, "wire.send('progress', 'not shown')"))

    assert seen.recording == "verdict"
    assert told == ["p2p"]
    assert [one.code for one in seen.agents.values()] == [1, 1]
    assert not seen.not_started
    assert not seen.broken_off
    wait_until(lambda: not alive(tmp_path))


def test_host_that_does_not_start_is_reported_to_the_head(start):
    head = "wait_until(starter.not_started);"
    head += " wire.send_recording(repr(starter.not_started())); (folder / 'told').touch()"
    # c runs until then: an agent that exits earlier is also reported to the head.
    other = "wait_until((folder / 'told').exists)"
    starts = start(head, WAIT, other)
    argv = (sys.executable, "-c", f"import os, sys; {REFUSED}")
    starts[1] = Start("ssh b", argv, os.environ, (1,))
    seen, told = ended(starts)

    assert seen.not_started == {1: "root@b: Permission denied"}
    assert seen.recording == "(NotStarted(hostname='b', reason='root@b: Permission denied'),)"
    assert "b could not be started: root@b: Permission denied" in told


def test_a_program_that_does_not_exist_is_a_host_that_cannot_be_started(start):
    starts = start(WAIT, WAIT)
    starts[0] = Start("ssh a", ("/nowhere/ssh",), os.environ, (0,))
    seen, _ = ended(starts)

    assert seen.not_started == {0: "/nowhere/ssh: No such file or directory"}


def test_other_agents_end_without_the_head(start, tmp_path):
    starts = start(WAIT, WAIT)
    starts[0] = Start("ssh a", (sys.executable, "-c", "import sys; sys.exit(3)"), os.environ, (0,))
    seen, _ = ended(starts)

    assert seen.not_started == {0: f"{sys.executable} exited with exit code 3 and no message"}
    assert not seen.timed_out
    wait_until(lambda: not alive(tmp_path))


def test_hosts_that_do_not_answer_are_reported_without_the_head(start, monkeypatch):
    monkeypatch.setattr(fanout, "_ANSWER_S", 1.0)
    failed = Start("ssh a", (sys.executable, "-c", "import sys; sys.exit('no route')"), os.environ, (0,))
    seen, _ = ended([failed, MUTE])

    assert seen.not_started == {0: "no route", 1: "no answer within 1 s"}


def test_agents_stay_until_the_last_message_of_each_has_arrived(start, tmp_path):
    stays = f"starter_channel._HEARD_S = {LIMIT_S}"
    head, last = f"{stays}; {HEAD}; (folder / 'told').touch()", f"{stays}; wait_until((folder / 'told').exists)"
    seen, _ = ended(start(head, "os.kill(os.getpid(), 9)", last))

    assert seen.broken_off.keys() == {1}
    assert [one.code for one in seen.agents.values()] == [1, None, 1]
    assert [path.read_text() for path in sorted(tmp_path.glob("heard*"))] == ["True", "True"]


def test_surviving_agent_reports_for_a_head_that_died(start):
    seen, _ = ended(start("os.kill(os.getpid(), 9)", "wire.send_recording('survivor')"))

    assert seen.recording == "survivor"
    assert "signal 9" in seen.broken_off[0]


def test_agent_that_dies_while_srun_lives_is_reported_to_the_head_in_seconds():
    code = (
        "from ddp_doctor.starters.starter_channel import written\nimport json, os, sys\n"
        "for rank in (0, 1): os.write(1, written(rank, 'hello', ''))\n"
        "sys.stderr.write('srun: error: b: task 1: Killed\\n'); sys.stderr.flush()\n"
        "os.write(1, written(0, 'recording', '') + written(0, 'refused', json.loads(input())['failed']))\n"
        "os.write(1, written(0, 'done', '1'))\n"
    )
    seen, _ = ended([Start("srun", (sys.executable, "-c", code), os.environ, (0, 1), ends_by_host=ends_by_host)])

    assert seen.broken_off == {1: "srun says: Killed"}
    assert seen.agents[0].refused == "its agent ended before the roll call was over: srun says: Killed"


def test_agent_done_after_sruns_error_has_not_broken_off(tmp_path, monkeypatch):
    monkeypatch.setattr(fanout, "_LAST_WORD_S", LIMIT_S)

    def heard(line: str) -> dict[str, str]:
        (tmp_path / "heard").touch()
        return ends_by_host(line)

    code = (
        "from ddp_doctor.starters.starter_channel import written\nimport os, sys\nfrom pathlib import Path\n"
        "from tests.waiting import wait_until\n"
        "os.write(1, written(0, 'hello', ''))\n"
        "sys.stderr.write('srun: error: a: task 0: Exited with exit code 1\\n'); sys.stderr.flush()\n"
        "wait_until(Path(sys.argv[1]).exists); os.write(1, written(0, 'done', '1'))\n"
    )
    argv = (sys.executable, "-c", code, str(tmp_path / "heard"))
    seen, _ = ended([Start("srun", argv, os.environ, (0,), ends_by_host=heard)])

    assert not seen.broken_off
    assert seen.agents[0].code == 1


@pytest.mark.parametrize(
    ("line", "hosts"),
    [
        ("srun: error: node2: task 1: Killed", {"node2": "srun says: Killed"}),
        (
            "srun: error: node[2-3]: tasks 1-2: Exited with exit code 1",
            dict.fromkeys(("node2", "node3"), "srun says: Exited with exit code 1"),
        ),
        (
            "srun: error: node2: task 1: Segmentation fault (core dumped)",
            {"node2": "srun says: Segmentation fault (core dumped)"},
        ),
        ("srun: error: Node failure on node2", {"node2": "srun says: Node failure"}),
        ("srun: error: no[de: task 1: Killed", {}),
        ("srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", {}),
    ],
)
def test_message_of_srun_about_an_ended_task_is_read(line, hosts):
    assert ends_by_host(line) == hosts


def test_silent_agent_does_not_delay_the_end(start, monkeypatch):
    monkeypatch.setattr(fanout, "_ANSWER_S", 0.0)
    seen, _ = ended([*start(f"starter_channel._HEARD_S = 0.1; {HEAD}"), MUTE])

    assert seen.recording == "verdict"
    assert seen.not_started[1].startswith("no answer within")
    assert not seen.timed_out


def test_host_without_an_answer_for_the_join_timeout_is_reported_to_the_head(start):
    head = "wait_until(starter.not_started);"
    head += " wire.send_recording(starter.not_started()[0].reason)"
    seen = FanOut([*start(head), MUTE], ["a", "b"], lambda _text: None, LIMIT_S, join_timeout_s=1.0).run()

    assert seen.recording == "no answer within 1 s, and ssh b still runs: the login there may hang"


@pytest.mark.serial
@pytest.mark.timing  # that 400 hosts end at once shows only in the time it takes
def test_many_hosts_work_within_the_usual_limit_of_open_files(monkeypatch):
    """ulimit -n 1024, the default of most systems; each host takes three pipes."""
    hosts = 400
    monkeypatch.setattr(started_process, "_KILL_S", 1.0)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    said = "printf '::ddp-doctor %s hello \"\"\\n' $0; trap '' TERM; sleep 1; ulimit -n >&2; read end; exec sleep 60"
    starts = [Start("sh", ("sh", "-c", said, str(rank)), os.environ, (rank,)) for rank in range(hosts)]
    try:
        fan_out = FanOut(starts, [f"h{n}" for n in range(hosts)], lambda _text: None, 4.0)
        monkeypatch.setattr(fanout, "GRACE_S", 1.0)
        began = time.monotonic()
        seen = fan_out.run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert not seen.not_started
    assert set(seen.broken_off.values()) == {"1024"}  # the job's programs keep the limit that they would have
    assert time.monotonic() - began < 25  # one after another they would take 400 s


def test_too_many_hosts_for_the_hard_limit_are_refused_before_any_is_started(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _what: (64, 256))
    start = Start("sh", ("sh", "-c", "exit"), os.environ, (0,))

    with pytest.raises(ValueError, match=r"200 hosts need \d+ open files, but this process may have only 256"):
        FanOut([start] * 200, [], lambda _text: None, 1.0)


def test_refusal_of_an_agent_is_received(start):
    seen, _ = ended(start("wire.send('refused', 'there is no check gpu')", "pass"))

    assert seen.refused == "there is no check gpu"


def test_others_that_stay_after_the_heads_report_are_ended(start, tmp_path, monkeypatch):
    monkeypatch.setattr(fanout, "GRACE_S", 0.5)
    seen, _ = ended(start(HEAD, WAIT))

    assert seen.recording == "verdict"
    assert not seen.timed_out
    wait_until(lambda: not alive(tmp_path))


def test_ctrl_c_reaches_the_agents_once_and_their_partial_reports_come_back(start, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    signal_when_ready(tmp_path, 2, signal.SIGINT)
    seen, _ = ended(start(WAIT, WAIT))

    assert seen.interrupted
    assert seen.recording == "partial 0"
    assert [one.code for one in seen.agents.values()] == [130, 130]
    assert signal.getsignal(signal.SIGINT) is before
    wait_until(lambda: not alive(tmp_path))


def test_a_second_signal_does_not_wait_for_an_agent_that_stays(start, tmp_path, monkeypatch):
    monkeypatch.setattr(started_process, "_KILL_S", 0.0)
    stays = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}"
    signal_when_ready(tmp_path, 2, signal.SIGTERM, signal.SIGTERM)
    seen, _ = ended(start(stays, WAIT))

    assert seen.interrupted
    assert not seen.timed_out
    wait_until(lambda: not alive(tmp_path))


def test_partial_reports_are_kept_and_no_process_stays_at_the_deadline(start, tmp_path, monkeypatch):
    monkeypatch.setattr(started_process, "_KILL_S", 0.3)
    deaf = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAIT}"
    fan_out = FanOut(start(WAIT, deaf), ["a", "b"], lambda _text: None, LIMIT_S)
    partial = fan_out.ended.agents[0]
    seen = out_of_time(fan_out, lambda: len([*tmp_path.glob("ready*")]) == 2, lambda: partial.code is not None)

    assert seen.recording == "partial 0"
    assert 1 in seen.broken_off
    wait_until(lambda: not alive(tmp_path))


def test_agent_without_a_message_was_not_started(monkeypatch):
    monkeypatch.setattr(fanout, "GRACE_S", 0.0)
    argv = ("sh", "-c", "echo waits for nodes >&2; exec sleep infinity")
    fan_out = FanOut([Start("srun", argv, os.environ, (0, 1))], ["a", "b"], lambda _text: None, LIMIT_S)
    seen = out_of_time(fan_out, lambda: fan_out._channels and fan_out._channels[0].last_words)

    assert seen.not_started == {0: "waits for nodes", 1: "waits for nodes"}


def test_process_with_agents_of_many_nodes_explains_the_failed_node(start):
    code = (
        "from ddp_doctor.starters.starter_channel import written\nimport os, sys\n"
        "for rank in (0, 2): os.write(1, written(rank, 'hello', ''))\n"
        "sys.stderr.write('srun: failed on node b: no answer\\n'); sys.stderr.flush()\n"
        "for rank in (0, 2): os.write(1, written(rank, 'done', '0'))\n"
    )
    argv = (sys.executable, "-c", code)

    def explain(line: str) -> dict[str, str]:
        return {"b": line.rpartition(": ")[2]}

    seen, _ = ended([Start("srun", argv, os.environ, (0, 1, 2), explain)])

    assert seen.not_started == {1: "no answer"}
    assert {rank: one.code for rank, one in seen.agents.items()} == {0: 0, 1: None, 2: 0}


def test_reason_is_the_first_message_of_srun_not_the_exit_of_its_tasks(start):
    lines = (
        "srun: cluster configuration lacks support for cpu binding",
        "slurmstepd-fan1: error: execve(): /x/python: No such file or directory",
        "srun: error: fan1: task 0: Exited with exit code 2",
        "srun: error: fan2: tasks 1-2: Exited with exit code 2",
    )
    argv = (sys.executable, "-c", f"import sys; sys.exit({chr(10).join(lines)!r})")
    seen, _ = ended([Start("srun", argv, os.environ, (0,))])

    assert seen.not_started == {0: lines[1]}


def test_background_process_that_keeps_the_pipes_open_does_not_block(tmp_path):
    """ssh leaves such a process with ControlPersist."""
    os.mkfifo(tmp_path / "end")
    code = f"import os\nif os.fork(): os._exit(0)\nos.setsid(); open({str(tmp_path / 'end')!r}).read()"
    seen, _ = ended([Start("ssh a", (sys.executable, "-c", code), os.environ, (0,))])

    assert 0 in seen.not_started
    assert not seen.timed_out
    (tmp_path / "end").write_text("")


def test_lost_and_hung_readers_cost_only_their_own_part(start):
    works = (REFUSED, "wire.send_recording('seen')", "wait_forever()")
    readers = Readers(start(*works), ["a", "b", "c"], lambda _: None, LIMIT_S, LIMIT_S)
    others = readers.ended.agents[1], readers.ended.agents[2]

    ended = out_of_time(
        readers, lambda: others[0].code is not None and others[1].has_answered and 0 in readers.ended.broken_off
    )

    assert ended.agents[1].recording == "seen"
    assert "Permission denied" in ended.broken_off[0]
    assert "no answer within" in ended.broken_off[2]
