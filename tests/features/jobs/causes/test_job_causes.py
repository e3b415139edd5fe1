"""The order of reasoning over a job's output: one situation each, as facts written by hand.

The signs belong to rows made in this file, so that the order is tested and not the messages of programs. Only the names
that the judge reads are ddp-doctor's own.
"""

from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.app.recordings import replay
from ddp_doctor.features.jobs import table as job_causes
from ddp_doctor.features.jobs.causes.findings import filled
from ddp_doctor.features.jobs.causes.judge import causes
from ddp_doctor.features.jobs.facts import FileSeen, JobLogFact, LogLine, RankSeen, SignSeen
from ddp_doctor.features.jobs.table.kinds import JobCause
from ddp_doctor.features.jobs.table.signs import Sign
from ddp_doctor.model.choices import Confidence, Domain, Restart
from ddp_doctor.model.recording import Options, Recording
from tests.readings import collected

BAR = LogLine(file="job.out", line=3, text="Tokenizing:  61%|######    | 61/100 [12:00<07:40]")
PROVED, LIKELY, POSSIBLE = Confidence.PROVED, Confidence.LIKELY, Confidence.POSSIBLE


def row(name: str, domain: Domain, *signs: Sign) -> JobCause:
    restart: Restart = "on the same nodes" if domain == "scheduler" else "unknown"
    signs_by_id = {sign.id: sign for sign in signs}
    return JobCause(name, "{who}", "", "", (), "", (), domain, restart, signs_by_id, code="DDJ000")


ROWS = (
    row("oom-kill", "host", Sign("xxxxx", id="oom", tier="kernel", confidence=PROVED)),
    row("gpu-off-bus", "gpu", Sign("xxxxx", id="xid79", tier="kernel", confidence=PROVED)),
    row("gsp-timeout", "gpu", Sign("xxxxx", id="xid119", tier="kernel", confidence=PROVED)),
    row("unused", "code", Sign("xxxxx", id="unused-parameters", confidence=PROVED)),
    row("port", "host", Sign("xxxxx", id="in-use", confidence=PROVED)),
    row("firewall", "network", Sign("xxxxx", id="connect-timeout")),
    row("shm", "host", Sign("xxxxx", id="shm", tier="nccl", confidence=PROVED)),
    row("fabric", "network", Sign("xxxxx", id="error-12", tier="nccl")),
    row("peermem", "host", Sign("xxxxx", id="no-peermem", tier="nccl", confidence=POSSIBLE)),
    row("time-limit", "scheduler", Sign("xxxxx", id="limit", tier="kernel", confidence=PROVED)),
)
BY_NAME = (
    row("rank-exception", "code"),
    row("collective-mismatch", "code"),
    row("rank0-only-collective", "code"),
    row("timeout-long-rank0-work", "code"),
    row("stuck-outside-collective", "code"),
    row("host-oom-kill", "host"),
    row("peer-died-secondary", "unknown"),
    row("process-crashed", "unknown"),
    row("rendezvous-host-mismatch", "network"),
    row("firewall-or-unreachable", "network"),
)
POINTERS = (
    Sign("xxxxx", id="exception", role="pointer"),
    Sign("xxxxx", id="watchdog-last-work", tier="watchdog", role="pointer"),
    Sign("xxxxx", id="peer-gone", role="victim"),
    Sign("xxxxx", id="hint", role="advice"),
    Sign("xxxxx", id="monitored", tier="watchdog", role="pointer"),
    Sign("xxxxx", id="store-refused", role="pointer"),
    Sign("xxxxx", id="store-unreached", role="pointer"),
    Sign("xxxxx", id="job-failed", tier="launcher", role="pointer"),
)


@pytest.fixture(autouse=True)
def _rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for cause in (*ROWS, *BY_NAME):
        monkeypatch.setitem(job_causes._BY_NAME, cause.name, cause)
        for sign in cause.signs.values():
            monkeypatch.setitem(job_causes.SIGNS, sign.id, (sign, cause))
    for sign in POINTERS:
        monkeypatch.setitem(job_causes.SIGNS, sign.id, (sign, None))


def said(sign: str, rank: int | None = None, line: int = 0, file: str = "job.out", **given: Any) -> SignSeen:
    fields = {key: given.pop(key) for key in ("host", "at_s", "ranks", "pid") if key in given}
    if sign in ("store-refused", "store-unreached"):
        given["host"] = fields.pop("host")
    values = {key: str(value) for key, value in given.items()}
    where = LogLine(file=file, line=line, text=sign)
    return SignSeen(sign=sign, where=where, rank=rank, values=values, **fields)


def raised(rank: int, kind: str, message: str = "", line: int = 0, **given: Any) -> SignSeen:
    return said("exception", rank, line, type=kind, message=message, **given)


def timed_out(seq: int, *ranks: int, op: str = "ALLREDUCE", numel: int = 1024, **given: Any) -> list[SignSeen]:
    return [said("watchdog-timeout", rank, seq=seq, op=op, numel=numel, **given) for rank in ranks]


def had_called(seq: int, *ranks: int) -> list[SignSeen]:
    return [said("watchdog-last-work", rank, enqueued=seq, completed=seq - 1) for rank in ranks]


def job(*signs: SignSeen, ranks: int | tuple[RankSeen, ...] = 0) -> Recording:
    """Return the output of a job with these signs; a sign without a line is one line below the previous one."""
    numbered, line = [], 0
    for sign in signs:
        line = sign.where.line or line + 1
        where = sign.where.model_copy(update={"line": line})
        numbered.append(sign.model_copy(update={"where": where}))
    if isinstance(ranks, int):
        ranks = tuple(RankSeen(rank=rank, host=f"node{rank // 4}") for rank in range(ranks))
    ends = (rank.last.line for rank in ranks if rank.last is not None)
    last = max(line, *ends, 0)
    step = LogLine(file="job.out", line=last, text="step 9")
    files = (FileSeen(name="job.out", kind="output", lines=last, last_step=step),)
    fact = JobLogFact(files=files, signs=tuple(numbered), ranks=ranks, world_size=len(ranks) or None)
    return Recording(readings=(collected("logs", fact),))


def named(recording: Recording) -> list[str]:
    """Return each cause, its confidence unless proved, and its ranks and hosts, such as ``stuck likely 5``."""
    found = []
    for judged in causes(recording):
        who = [str(c.node if c.rank is None else c.rank) for c in judged.culprits]
        sure = [] if judged.confidence is PROVED else [judged.confidence.value]
        found.append(" ".join([judged.cause.name, *sure, *who]))
    return found


def ended(*how: str | int, lines: int = 100) -> tuple[RankSeen, ...]:
    """Return ranks with these signals or exit codes; 0 for none."""
    return tuple(
        RankSeen(
            rank=rank,
            signal=end if isinstance(end, str) else None,
            exit_code=end if isinstance(end, int) and end else None,
            last=LogLine(file="job.out", line=lines, text="last"),
        )
        for rank, end in enumerate(how)
    )


ORDER = {
    "the kernel's word explains what NCCL and the watchdog say of the same host": (
        job(said("error-12", 1, host="node0"), said("xid79", host="node0", file="dmesg"), *timed_out(1, 0, 1)),
        ["gpu-off-bus node0"],
    ),
    "a CUDA error on the host of a lost GPU is of the kernel's word": (
        job(
            raised(1, "RuntimeError", "CUDA error: unknown error", host="node0"), said("xid79", host="node0", file="k")
        ),
        ["gpu-off-bus node0"],
    ),
    "a ValueError beside a lost GPU of another rank is a fault of its own": (
        job(said("xid79", host="node0"), raised(5, "ValueError", "empty batch", host="node1")),
        ["gpu-off-bus node0", "rank-exception likely 5"],
    ),
    "of two words of the kernel on one host the earlier brought the other": (
        job(said("xid79", host="node0"), said("xid119", host="node0")),
        ["gpu-off-bus node0"],
    ),
    "two hosts lose a GPU each": (
        job(said("xid79", host="node0"), said("xid119", host="node1")),
        ["gpu-off-bus node0", "gsp-timeout node1"],
    ),
    "a kernel's word that is known to be later does not explain an exception": (
        job(raised(1, "RuntimeError", "CUDA error", host="node0"), said("xid79", host="node0")),
        ["library-exception likely 1", "gpu-off-bus node0"],
    ),
    "an exception of one rank explains the time-outs and closed connections of the others": (
        job(raised(2, "ValueError", "bad"), said("peer-gone", 0), *timed_out(9, 0, 1, 3), ranks=4),
        ["rank-exception likely 2"],
    ),
    "the same exception on all ranks is one, and blames no rank": (
        job(*(raised(rank, "KeyError", f"'lr{rank}'") for rank in range(4)), ranks=4),
        ["rank-exception likely"],
    ),
    "two different exceptions are two causes": (
        job(raised(0, "KeyError", "'lr'"), raised(3, "ValueError", "nan"), ranks=4),
        ["rank-exception likely 0", "rank-exception likely 3"],
    ),
    "an exception that tells of a peer is no cause beside one that does not": (
        job(raised(0, "DistBackendError", "NCCL error"), raised(3, "ValueError", "nan"), ranks=4),
        ["rank-exception likely 3"],
    ),
    "a cause inside of an exception stands in for it": (
        job(raised(0, "RuntimeError", "Expected to have finished", 5, first_line=1), said("unused-parameters", 0, 6)),
        ["unused 0"],
    ),
    "a cause on another rank does not": (
        job(raised(0, "RuntimeError", "mine", 5, first_line=1), said("unused-parameters", 1, 6)),
        ["rank-exception likely 0", "unused 1"],
    ),
    "clients that time out follow from the server's port": (
        job(said("connect-timeout", 1, file="b.log"), said("in-use", 0, file="a.log"), ranks=2),
        ["port node0"],
    ),
    "a fault of the network that nothing else explains stays": (
        job(said("connect-timeout", 1, file="b.log"), ranks=2),
        ["firewall likely node0"],
    ),
    "a hint counts for nothing beside an exception, whatever the order": (
        job(said("no-peermem", 0, 1), raised(0, "ValueError", "nan", 90), ranks=2),
        ["rank-exception likely 0"],
    ),
    "NCCL's warning before an exception of other code are two faults": (
        job(said("shm", 0, host="node0"), raised(5, "ValueError", "nan", host="node1"), ranks=8),
        ["shm node0", "rank-exception likely 5"],
    ),
    "the earlier of two warnings brought the other": (
        job(said("error-12", 0, host="node0"), said("shm", 5, host="node1"), ranks=8),
        ["fabric likely node0"],
    ),
    "two proved warnings on two hosts are two faults": (
        job(said("shm", 0, host="node0"), said("shm", 5, host="node1"), ranks=8),
        ["shm node0 node1"],
    ),
    "what comes after the scheduler's end is its answer": (
        job(said("limit"), raised(0, "RuntimeError", "signal", 9), ranks=2),
        ["time-limit"],
    ),
    "an exception before the scheduler's end is the cause": (
        job(raised(0, "RuntimeError", "mine"), said("limit"), ranks=2),
        ["rank-exception likely 0"],
    ),
    "error 12 of many nodes towards one address is that address's": (
        job(*(said("error-12", rank, host=f"node{rank}", peer="10.0.0.9") for rank in range(3))),
        ["fabric likely 10.0.0.9"],
    ),
    "error 12 of one node towards many is its own": (
        job(*(said("error-12", 0, host="node0", peer=f"10.0.0.{peer}") for peer in range(3))),
        ["fabric likely node0"],
    ),
}

TIME_OUTS = {
    "one rank had called less: it stood elsewhere": (
        job(*timed_out(17, 0, 1, 2, 3, 4, 6, 7), *had_called(16, 5), ranks=8),
        ["stuck-outside-collective likely 5"],
    ),
    "rank 0 alone is in a barrier and had called one more": (
        job(*timed_out(17, 0, numel=1), *had_called(16, 1, 2, 3), ranks=4),
        ["rank0-only-collective likely 0"],
    ),
    "rank 0 alone is in a barrier, the others say nothing": (
        job(*timed_out(17, 0, numel=1), ranks=4),
        ["rank0-only-collective possible 0"],
    ),
    "one rank is in another collective": (
        job(*timed_out(17, 0, 1, 3), *timed_out(17, 2, op="ALLGATHER"), ranks=4),
        ["collective-mismatch likely 2"],
    ),
    "one rank is in a barrier and all others are in what comes after it": (
        job(*timed_out(17, 0, numel=1), *timed_out(17, 1, 2, 3), ranks=4),
        ["rank0-only-collective likely 0"],
    ),
    "torch itself lists who did not come": (
        job(said("monitored", 0, missing="2, 5"), ranks=8),
        ["stuck-outside-collective likely 2 5"],
    ),
    "two ranks are in different collectives: nobody is named": (
        job(*timed_out(17, 0), *timed_out(17, 1, numel=7), ranks=2),
        ["collective-mismatch likely"],
    ),
    "two groups are compared each for itself": (
        job(*timed_out(17, 0, 1, group="tp"), *timed_out(17, 2, 3, numel=5, group="dp"), ranks=4),
        ["job-failed-cause-not-proven possible"],
    ),
    "ranks that send and receive differ by nature": (
        job(*timed_out(17, 0, op="SEND"), *timed_out(17, 1, op="RECV"), ranks=2),
        ["job-failed-cause-not-proven possible"],
    ),
    "all wait in the same: nobody is named": (
        job(*timed_out(17, 0, 1, 2, 3), ranks=4),
        ["job-failed-cause-not-proven possible"],
    ),
    "a rank that says nothing is missing, not guilty": (
        job(*timed_out(17, 0, 1, 3), ranks=4),
        ["job-failed-cause-not-proven possible"],
    ),
    "rank 0 worked on while all others waited for it": (
        job(*timed_out(2, 1, 2, 3, numel=1), ranks=(RankSeen(rank=0, last=BAR), *ended(0, 0, 0, 0)[1:])),
        ["timeout-long-rank0-work likely 0"],
    ),
}

ENDS = {
    "a complaint of NCCL that a process gets over is no failure": (
        job(said("error-12", 1, line=5), ranks=ended(0, 0, lines=500)),
        [],
    ),
    "a complaint behind which nothing comes is one": (
        job(said("error-12", 1, line=99), ranks=ended(0, 0)),
        ["fabric likely 1"],
    ),
    "an exception that a rank survives is no failure": (
        job(raised(1, "ValueError", "caught", 5), ranks=ended(0, 0, lines=500)),
        [],
    ),
    "an exception long before the end counts where a rank died": (
        job(raised(1, "ValueError", "not caught", 205), ranks=ended(0, 1, lines=500)),
        ["rank-exception 1"],
    ),
    "advice alone is no failure": (job(said("hint", 0), ranks=2), []),
    "nothing is said": (job(ranks=2), []),
    "killed by nobody who says so": (
        job(said("peer-gone", 0), said("peer-gone", 2), ranks=ended(0, "SIGKILL", 0)),
        ["host-oom-kill possible 1"],
    ),
    "a shell's 137 is SIGKILL": (job(ranks=ended(0, 137)), ["host-oom-kill possible 1"]),
    "all ranks killed at once have no single one to blame": (
        job(ranks=ended("SIGKILL", "SIGKILL")),
        ["job-failed-cause-not-proven possible"],
    ),
    "those who are left do not know who died first": (
        job(said("peer-gone", 0), said("peer-gone", 2), ranks=3),
        ["peer-died-secondary possible"],
    ),
    "a rank died of SIGSEGV without a word": (job(ranks=ended(0, "SIGSEGV")), ["process-crashed possible 1"]),
    "a server refuses its clients: nobody listens there": (
        job(said("store-refused", 1, host="node0", port=29500), ranks=2),
        ["rendezvous-host-mismatch likely node0"],
    ),
    "a server does not answer its clients": (
        job(said("store-unreached", 1, host="node0", port=29500), ranks=2),
        ["firewall-or-unreachable possible node0"],
    ),
    "the launcher says that the job failed, and no more is known": (
        job(said("job-failed", line=1), ranks=ended(0, 0, lines=500)),
        ["job-failed-cause-not-proven possible"],
    ),
}


@pytest.mark.parametrize("situation", [*ORDER, *TIME_OUTS, *ENDS])
def test_who_is_named(situation: str):
    recording, expected = {**ORDER, **TIME_OUTS, **ENDS}[situation]

    assert named(recording) == expected


def test_causes_of_several_files_come_in_the_order_of_time_where_each_has_one():
    late = raised(0, "ValueError", "late", file="a.log", at_s=900.0)
    early = raised(1, "KeyError", "early", file="b.log", at_s=100.0)

    assert named(job(late, early, ranks=2)) == ["rank-exception likely 1", "rank-exception likely 0"]


def test_clocks_of_two_zones_are_aligned_by_the_time_out_of_one_collective():
    hour = 3600.0
    recording = job(
        *timed_out(9, 0, file="a.log", at_s=10 * hour),
        *timed_out(9, 1, file="b.log", at_s=12 * hour + 1),
        raised(0, "ValueError", "after", file="a.log", at_s=10 * hour + 50),
        raised(1, "KeyError", "before", file="b.log", at_s=12 * hour - 50),
        ranks=2,
    )

    assert named(recording)[0] == "rank-exception likely 1"


def test_what_is_known_of_an_unproved_failure_is_said():
    (judged,) = causes(job(*timed_out(17, 0, 1, 3), ranks=ended(0, 0, "SIGABRT", 0)))

    assert judged.values["what"] == "ranks 0, 1, 3 waited in all-reduce 17 of 1024 elements"
    assert judged.detail.startswith("Rank 2 printed no timeout, so check there first. Rank 2 ended by SIGABRT. 16 ")


@pytest.mark.parametrize(
    ("template", "title"),
    [
        ("{who} never entered[ {op}][ {seq}]", "rank 5 never entered all-reduce"),
        ("port[ {port}] of {who} is taken", "port of rank 5 is taken"),
        ("{who}[: {what}]", "rank 5"),
        ("{missing} of {who}, too", "of rank 5, too"),
    ],
)
def test_words_around_a_value_that_is_missing_stay_readable(template: str, title: str):
    assert filled(template, {"who": "rank 5", "op": "all-reduce"}) == title


@pytest.mark.parametrize(
    ("signs", "code"),
    [
        (("memory-not-registered-untold", "of-tomorrow"), "DDJ150"),  # the first has another id today
        (("of-tomorrow", "shm-no-space", "of-tomorrow"), "DDJ101"),
        (("of-tomorrow", "closing-signal"), "DDJ198"),
    ],
)
def test_a_recording_of_another_release_is_judged_by_the_signs_that_are_known(
    signs: tuple[str, ...], code: str, tmp_path: Path
):
    recording = job(*(said(sign, rank) for rank, sign in enumerate(signs)), ranks=ended("SIGABRT", 0))
    of_another = recording.model_copy(update={"options": Options(command="logs"), "run_id": "20260102T030405Z-0a1b2c"})
    path = tmp_path / "recording.json"
    path.write_text(of_another.model_dump_json())

    outcome = replay(path)

    assert [finding.code for finding in outcome.report.findings] == [code]
    assert outcome.rule_failures == ()
