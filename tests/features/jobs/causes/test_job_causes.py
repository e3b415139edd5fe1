"""The order of reasoning over a job's output: one situation each, as facts written by hand.

The signs belong to rows defined in this file, because the tests cover the order and not the messages of programs. Only
the cause names that the judge reads are ddp-doctor's own.
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
    "a kernel message explains NCCL errors and timeouts of the same host": (
        job(said("error-12", 1, host="node0"), said("xid79", host="node0", file="dmesg"), *timed_out(1, 0, 1)),
        ["gpu-off-bus node0"],
    ),
    "a kernel message explains a CUDA error on the host of a lost GPU": (
        job(
            raised(1, "RuntimeError", "CUDA error: unknown error", host="node0"), said("xid79", host="node0", file="k")
        ),
        ["gpu-off-bus node0"],
    ),
    "a ValueError on another host than the lost GPU is a separate fault": (
        job(said("xid79", host="node0"), raised(5, "ValueError", "empty batch", host="node1")),
        ["gpu-off-bus node0", "rank-exception likely 5"],
    ),
    "the first of two kernel messages on one host is the cause": (
        job(said("xid79", host="node0"), said("xid119", host="node0")),
        ["gpu-off-bus node0"],
    ),
    "two hosts lose a GPU each": (
        job(said("xid79", host="node0"), said("xid119", host="node1")),
        ["gpu-off-bus node0", "gsp-timeout node1"],
    ),
    "a later kernel message does not explain an exception": (
        job(raised(1, "RuntimeError", "CUDA error", host="node0"), said("xid79", host="node0")),
        ["library-exception likely 1", "gpu-off-bus node0"],
    ),
    "an exception of one rank explains timeouts and closed connections of the others": (
        job(raised(2, "ValueError", "bad"), said("peer-gone", 0), *timed_out(9, 0, 1, 3), ranks=4),
        ["rank-exception likely 2"],
    ),
    "the same exception on all ranks is one cause and blames no rank": (
        job(*(raised(rank, "KeyError", f"'lr{rank}'") for rank in range(4)), ranks=4),
        ["rank-exception likely"],
    ),
    "two different exceptions are two causes": (
        job(raised(0, "KeyError", "'lr'"), raised(3, "ValueError", "nan"), ranks=4),
        ["rank-exception likely 0", "rank-exception likely 3"],
    ),
    "an exception about a peer is not a cause next to another exception": (
        job(raised(0, "DistBackendError", "NCCL error"), raised(3, "ValueError", "nan"), ranks=4),
        ["rank-exception likely 3"],
    ),
    "a cause inside an exception replaces it": (
        job(raised(0, "RuntimeError", "Expected to have finished", 5, first_line=1), said("unused-parameters", 0, 6)),
        ["unused 0"],
    ),
    "a cause on another rank does not replace an exception": (
        job(raised(0, "RuntimeError", "mine", 5, first_line=1), said("unused-parameters", 1, 6)),
        ["rank-exception likely 0", "unused 1"],
    ),
    "a server port in use explains clients that time out": (
        job(said("connect-timeout", 1, file="b.log"), said("in-use", 0, file="a.log"), ranks=2),
        ["port node0"],
    ),
    "a network fault without another explanation is reported": (
        job(said("connect-timeout", 1, file="b.log"), ranks=2),
        ["firewall likely node0"],
    ),
    "a hint is ignored next to an exception in any order": (
        job(said("no-peermem", 0, 1), raised(0, "ValueError", "nan", 90), ranks=2),
        ["rank-exception likely 0"],
    ),
    "an NCCL warning before an exception of other code is a separate fault": (
        job(said("shm", 0, host="node0"), raised(5, "ValueError", "nan", host="node1"), ranks=8),
        ["shm node0", "rank-exception likely 5"],
    ),
    "the first of two warnings is the cause": (
        job(said("error-12", 0, host="node0"), said("shm", 5, host="node1"), ranks=8),
        ["fabric likely node0"],
    ),
    "a proved warning on two hosts blames both": (
        job(said("shm", 0, host="node0"), said("shm", 5, host="node1"), ranks=8),
        ["shm node0 node1"],
    ),
    "an error after the scheduler ended the job is a consequence": (
        job(said("limit"), raised(0, "RuntimeError", "signal", 9), ranks=2),
        ["time-limit"],
    ),
    "an exception before the scheduler ended the job is the cause": (
        job(raised(0, "RuntimeError", "mine"), said("limit"), ranks=2),
        ["rank-exception likely 0"],
    ),
    "error 12 of many nodes to one address blames the address": (
        job(*(said("error-12", rank, host=f"node{rank}", peer="10.0.0.9") for rank in range(3))),
        ["fabric likely 10.0.0.9"],
    ),
    "error 12 of one node to many addresses blames the node": (
        job(*(said("error-12", 0, host="node0", peer=f"10.0.0.{peer}") for peer in range(3))),
        ["fabric likely node0"],
    ),
}

TIME_OUTS = {
    "one rank called fewer collectives and is stuck elsewhere": (
        job(*timed_out(17, 0, 1, 2, 3, 4, 6, 7), *had_called(16, 5), ranks=8),
        ["stuck-outside-collective likely 5"],
    ),
    "only rank 0 is in a barrier and called one more": (
        job(*timed_out(17, 0, numel=1), *had_called(16, 1, 2, 3), ranks=4),
        ["rank0-only-collective likely 0"],
    ),
    "only rank 0 is in a barrier and the others print nothing": (
        job(*timed_out(17, 0, numel=1), ranks=4),
        ["rank0-only-collective possible 0"],
    ),
    "one rank is in another collective": (
        job(*timed_out(17, 0, 1, 3), *timed_out(17, 2, op="ALLGATHER"), ranks=4),
        ["collective-mismatch likely 2"],
    ),
    "one rank is in a barrier and all others in the next collective": (
        job(*timed_out(17, 0, numel=1), *timed_out(17, 1, 2, 3), ranks=4),
        ["rank0-only-collective likely 0"],
    ),
    "torch lists the missing ranks": (
        job(said("monitored", 0, missing="2, 5"), ranks=8),
        ["stuck-outside-collective likely 2 5"],
    ),
    "two ranks are in different collectives and neither is blamed": (
        job(*timed_out(17, 0), *timed_out(17, 1, numel=7), ranks=2),
        ["collective-mismatch likely"],
    ),
    "two groups are compared separately": (
        job(*timed_out(17, 0, 1, group="tp"), *timed_out(17, 2, 3, numel=5, group="dp"), ranks=4),
        ["job-failed-cause-not-proven possible"],
    ),
    "send and receive are not a mismatch": (
        job(*timed_out(17, 0, op="SEND"), *timed_out(17, 1, op="RECV"), ranks=2),
        ["job-failed-cause-not-proven possible"],
    ),
    "all ranks wait in one collective and no rank is blamed": (
        job(*timed_out(17, 0, 1, 2, 3), ranks=4),
        ["job-failed-cause-not-proven possible"],
    ),
    "a silent rank is not blamed": (job(*timed_out(17, 0, 1, 3), ranks=4), ["job-failed-cause-not-proven possible"]),
    "rank 0 worked while all others waited for it": (
        job(*timed_out(2, 1, 2, 3, numel=1), ranks=(RankSeen(rank=0, last=BAR), *ended(0, 0, 0, 0)[1:])),
        ["timeout-long-rank0-work likely 0"],
    ),
}

ENDS = {
    "an NCCL warning that a process survives is not a failure": (
        job(said("error-12", 1, line=5), ranks=ended(0, 0, lines=500)),
        [],
    ),
    "an NCCL warning at the end is a failure": (
        job(said("error-12", 1, line=99), ranks=ended(0, 0)),
        ["fabric likely 1"],
    ),
    "an exception that a rank survives is not a failure": (
        job(raised(1, "ValueError", "caught", 5), ranks=ended(0, 0, lines=500)),
        [],
    ),
    "an early exception counts if its rank died": (
        job(raised(1, "ValueError", "not caught", 205), ranks=ended(0, 1, lines=500)),
        ["rank-exception 1"],
    ),
    "advice alone is not a failure": (job(said("hint", 0), ranks=2), []),
    "no signs": (job(ranks=2), []),
    "SIGKILL without a message about its sender": (
        job(said("peer-gone", 0), said("peer-gone", 2), ranks=ended(0, "SIGKILL", 0)),
        ["host-oom-kill possible 1"],
    ),
    "exit code 137 is SIGKILL": (job(ranks=ended(0, 137)), ["host-oom-kill possible 1"]),
    "all ranks were killed and no rank is blamed": (
        job(ranks=ended("SIGKILL", "SIGKILL")),
        ["job-failed-cause-not-proven possible"],
    ),
    "the remaining ranks do not show which rank died first": (
        job(said("peer-gone", 0), said("peer-gone", 2), ranks=3),
        ["peer-died-secondary possible"],
    ),
    "a rank died of SIGSEGV without a message": (job(ranks=ended(0, "SIGSEGV")), ["process-crashed possible 1"]),
    "a server refuses its clients because its port is closed": (
        job(said("store-refused", 1, host="node0", port=29500), ranks=2),
        ["rendezvous-host-mismatch likely node0"],
    ),
    "a server does not answer its clients": (
        job(said("store-unreached", 1, host="node0", port=29500), ranks=2),
        ["firewall-or-unreachable possible node0"],
    ),
    "the launcher reports a failure without a cause": (
        job(said("job-failed", line=1), ranks=ended(0, 0, lines=500)),
        ["job-failed-cause-not-proven possible"],
    ),
}


@pytest.mark.parametrize("situation", [*ORDER, *TIME_OUTS, *ENDS])
def test_situation_gives_the_expected_causes_and_blame(situation: str):
    recording, expected = {**ORDER, **TIME_OUTS, **ENDS}[situation]

    assert named(recording) == expected


def test_causes_of_several_files_are_sorted_by_time_if_all_have_one():
    late = raised(0, "ValueError", "late", file="a.log", at_s=900.0)
    early = raised(1, "KeyError", "early", file="b.log", at_s=100.0)

    assert named(job(late, early, ranks=2)) == ["rank-exception likely 1", "rank-exception likely 0"]


def test_clocks_of_two_time_zones_are_aligned_by_a_common_timeout():
    hour = 3600.0
    recording = job(
        *timed_out(9, 0, file="a.log", at_s=10 * hour),
        *timed_out(9, 1, file="b.log", at_s=12 * hour + 1),
        raised(0, "ValueError", "after", file="a.log", at_s=10 * hour + 50),
        raised(1, "KeyError", "before", file="b.log", at_s=12 * hour - 50),
        ranks=2,
    )

    assert named(recording)[0] == "rank-exception likely 1"


def test_unproven_failure_shows_the_known_facts():
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
def test_title_without_a_missing_value_stays_readable(template: str, title: str):
    assert filled(template, {"who": "rank 5", "op": "all-reduce"}) == title


@pytest.mark.parametrize(
    ("signs", "code"),
    [
        (("memory-not-registered-untold", "of-tomorrow"), "DDJ150"),  # the first has another id today
        (("of-tomorrow", "shm-no-space", "of-tomorrow"), "DDJ101"),
        (("of-tomorrow", "closing-signal"), "DDJ198"),
    ],
)
def test_recording_of_another_release_is_evaluated_by_known_signs(signs: tuple[str, ...], code: str, tmp_path: Path):
    recording = job(*(said(sign, rank) for rank, sign in enumerate(signs)), ranks=ended("SIGABRT", 0))
    of_another = recording.model_copy(update={"options": Options(command="logs"), "run_id": "20260102T030405Z-0a1b2c"})
    path = tmp_path / "recording.json"
    path.write_text(of_another.model_dump_json())

    outcome = replay(path)

    assert [finding.code for finding in outcome.report.findings] == [code]
    assert outcome.rule_failures == ()
