"""Timeouts: ranks at fault by the collective numbers that torch prints, and the state of NCCL's setup."""

from pathlib import Path

import pytest

from ddp_doctor.features.jobs.logs.use_case import logs
from ddp_doctor.model.report import LogsReport

DEFAULT = "PG ID 0 PG GUID 0(default_pg)"
MESH = "PG ID 1 PG GUID 1(tp)"
DESYNC = """\t - [0] Timeout at collective: ALLREDUCE, #11
\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:
\t     [1] finished collective #10, but didn't join collective #11 (count from 1)
\t - Snapshot of ranks' latest states:
\t   #11 started ranks:
\t     [0] started ALLREDUCE
"""
SILENT_2_AND_3 = "[rank2]: loss 0.71\n[rank3]: loss 0.69\n"
BAR_OF_1 = "[rank1]:  45%|####5     | 45/100 [00:10<00:12,  4.5it/s]\n"


def late(rank: int, seq: int) -> str:
    return (
        f"[rank{rank}]:[E1123 16:27:57.100000000 ProcessGroupNCCL.cpp:688] [Rank {rank}] Watchdog caught collective"
        f" operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=8000)"
        " ran for 8027 milliseconds before timing out.\n"
    )


def said(rank: int, words: str, group: str = DEFAULT) -> str:
    return f"[rank{rank}]:[E1123 16:27:58.100000000 ProcessGroupNCCL.cpp:2241] [{group} Rank {rank}] {words}\n"


def waits(rank: int, seq: int, enqueued: int | None = None, group: str = DEFAULT) -> str:
    """Return the output of a rank that timed out, as in torch 2.6 to 2.12."""
    words = f" failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work:"
    return late(rank, seq) + said(rank, f"{words} {enqueued or seq}, last completed work: {seq - 1}", group)


def told(rank: int, enqueued: int, group: str = DEFAULT) -> str:
    """Return the output of a rank that another rank's timeout woke, as in torch 2.5 and later."""
    words = "Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug"
    numbers = f"info. Last enqueued NCCL work: {enqueued}, last completed NCCL work: {enqueued}.This is most likely"
    return said(rank, f"{words} {numbers}", group)


OF_RANK_0 = {
    "2.3": "Timeout at NCCL work: 11, last enqueued NCCL work: 11, last completed NCCL work: 10.",
    "2.5": "Exception (either an error or timeout) detected by watchdog at work: 11, last enqueued NCCL work: 11,"
    " last completed NCCL work: 10.",
    "2.9": " failure detected by watchdog at work sequence id: 11 PG status: last enqueued work: 11, last completed"
    " work: 10",
    "2.13": " failure detected by watchdog at work sequence id: 11 PG status: last enqueued work: 14, last started"
    " work: -1, last completed work: 10",
}
OF_RANK_1 = {
    "dump signal": told(1, 10),
    "none called": told(1, -1),
    "global": said(
        1,
        "Received a global timeout from another rank and will start to dump the debug info. Last enqueued NCCL"
        " work: 10, last completed NCCL work: 10.",
        "PG 0",
    ),
    "signal": said(
        1, "Received a dump signal from another rank and will start. Last enqueued NCCL work: 10, last completed"
        " NCCL work: 10."
    ),
    "desync report": DESYNC,
}  # fmt: skip


def judged(folder: Path, text: str) -> LogsReport:
    (folder / "job.out").write_text(text)
    report = logs([str(folder / "job.out")]).report
    assert isinstance(report, LogsReport)
    return report


@pytest.mark.parametrize("one", OF_RANK_1.values(), ids=OF_RANK_1.keys())
@pytest.mark.parametrize("zero", OF_RANK_0.values(), ids=OF_RANK_0.keys())
def test_neither_of_two_ranks_with_unequal_counts_is_blamed(zero: str, one: str, tmp_path: Path):
    report = judged(tmp_path, late(0, 11) + said(0, zero) + one)

    (finding,) = report.findings
    assert finding.culprits == ()
    assert finding.title.endswith(", rank 0 waits in 11: rank 1 did not enter, or rank 0 called one more")
    assert finding.title.startswith(("Rank 1 had called 10,", "Rank 1 had called none,"))


@pytest.mark.parametrize(
    ("text", "cause", "guilty"),
    [
        (waits(0, 11) + waits(2, 11) + waits(3, 11) + told(1, 10), "stuck-outside-collective", [1]),
        (waits(0, 11) + waits(2, 11) + waits(3, 11) + DESYNC, "stuck-outside-collective", [1]),
        (waits(0, 11) + waits(2, 11) + told(1, 10) + told(3, 10), "stuck-outside-collective", []),
        (waits(0, 11) + told(1, 10) + told(2, 10) + told(3, 10), "rank0-only-collective", [0]),
        (waits(0, 11) + waits(1, 11) + told(2, 10) + told(3, 10) + told(4, 10), "stuck-outside-collective", []),
        (waits(0, 11, 17) + told(1, 12), "job-failed-cause-not-proven", []),
        (waits(0, 11) + waits(1, 11), "job-failed-cause-not-proven", []),
        # One rank came. The others are known to be at work, or to have called no collective yet: either may be late.
        (waits(0, 11) + told(1, 10) + SILENT_2_AND_3 + BAR_OF_1, "job-failed-cause-not-proven", []),
        (waits(0, 1) + told(1, 0) + told(2, 0), "job-failed-cause-not-proven", []),
        (waits(0, 1) + told(1, -1) + told(2, -1), "job-failed-cause-not-proven", []),
        # Numbers of different groups cannot be compared, nor can a report without a group if there are several.
        (waits(0, 11, group=MESH) + told(1, 10), "job-failed-cause-not-proven", []),
        (waits(0, 5000, group=MESH) + told(1, 10), "job-failed-cause-not-proven", []),
        (waits(0, 11, group=MESH) + told(1, 500) + DESYNC, "job-failed-cause-not-proven", []),
    ],
)  # fmt: skip
def test_cause_and_blamed_ranks_follow_from_the_counts_of_collectives(
    text: str, cause: str, guilty: list[int], tmp_path: Path
):
    report = judged(tmp_path, text)

    assert [cause.name for cause in report.causes] == [cause]
    assert [c.rank for finding in report.findings for c in finding.culprits] == guilty


def test_dumps_of_a_disabled_recorder_do_not_hide_timeouts(tmp_path: Path):
    for rank in range(3):
        (tmp_path / f"trace_{rank}").write_text(
            '{"version": "2.10", "pg_config": {}, "comm_lib_version": "", "pg_status": {}, "entries": []}'
        )
    (tmp_path / "job.out").write_text(waits(0, 17) + waits(1, 17) + told(2, 16))

    report = logs([str(tmp_path)]).report

    assert isinstance(report, LogsReport)
    assert [cause.name for cause in report.causes] == ["stuck-outside-collective"]
    assert [c.rank for finding in report.findings for c in finding.culprits] == [2]


def test_ranks_are_listed_by_number_if_the_world_size_is_unknown(tmp_path: Path):
    """A rank that was killed or stopped prints nothing."""
    (finding,) = judged(tmp_path, waits(0, 17) + waits(1, 17)).findings

    assert finding.title.startswith("Rank 0 and rank 1 waited in all-reduce 17")


TRACEBACK = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/home/me/my train.py", line 7, in step\n'


@pytest.mark.parametrize(
    ("text", "check"),
    [
        (waits(0, 11) + told(1, 10), "ddp-doctor lint SCRIPT; "),
        (
            TRACEBACK + "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running"
            " collective: CollectiveFingerPrint(SequenceNumber=3, OpType=BROADCAST), but Rank 0 is running collective:"
            " CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE).\n",
            "ddp-doctor lint '/home/me/my train.py'; ",
        ),
    ],
)
def test_next_check_for_a_code_fault_is_lint_with_the_file_if_known(text: str, check: str, tmp_path: Path):
    (cause,) = judged(tmp_path, text).causes

    assert cause.next_check.startswith(check)


def nccl(rank: int, text: str) -> str:
    return f"node0:{70 + rank}:{90 + rank} [{rank}] NCCL {text}\n"


def comm(rank: int, state: str) -> str:
    name = f"comm 0x55d0{rank} rank {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId {rank}a000"
    return nccl(rank, f"INFO {name} {'' if state == 'Destroy COMPLETE' else 'commId 0x7c1 '}- {state}")


def both(of_rank: str) -> str:
    return comm(0, of_rank) + comm(1, of_rank)


def paths(via: str) -> str:
    ends = ((0, 1), (1, 0))
    return "".join(
        nccl(a, f"INFO Channel 00/0 : {a}[{a}] -> {b}[{b}] via {via}") + nccl(a, "INFO Connected all rings")
        for a, b in ends
    )


BEGUN, COMPLETE, DESTROYED = both("Init START"), both("Init COMPLETE"), both("Destroy COMPLETE")
STEPS = "".join(f"step {step} loss 0.1\n" for step in range(40))
PATTERN = (
    "node0:70:90 [0] graph/search.cc:1121 NCCL WARN Could not find a path for pattern 4, falling back to simple order\n"
)
PEER = "node0:70:90 [0] misc/cudawrap.cc:257 NCCL WARN Cuda failure 217 'peer access is not supported between'\n"
OF_2_32 = (
    "node0:70:90 [0] NCCL ATTN Failed to initialize NET plugin IB\n"
    "node0:70:90 [0] transport/net_ib/common.cc:88 (ncclIbInit) NCCL WARN lib wrapper not initialized.\n"
    "node0:70:90 [0] rma/socket.cc:12 (init) NCCL WARN RMA/Socket : rma_socket requires GDRCopy; set NCCL_GDRCOPY\n"
)


@pytest.mark.parametrize(
    "text",
    [
        BEGUN + PATTERN + COMPLETE,
        BEGUN + PEER + COMPLETE,
        BEGUN + PATTERN + COMPLETE + DESTROYED,
        PATTERN + STEPS,
        BEGUN + "NCCL version 2.27.5\n" + DESTROYED,
        DESTROYED,
        BEGUN + comm(0, "Init COMPLETE"),
        STEPS + comm(0, "Init START") + STEPS,
        BEGUN + nccl(0, "INFO AllReduce: opCount 1b2 sendbuff 0x7f recvbuff 0x7f count 8") * 30,
        BEGUN + OF_2_32 + COMPLETE,
        BEGUN + COMPLETE + OF_2_32,
        OF_2_32,
    ],
)  # fmt: skip
def test_nccl_warnings_and_incomplete_setup_do_not_fail_a_finished_job(text: str, tmp_path: Path):
    report = judged(tmp_path, text + STEPS + "training finished\n")

    assert (report.exit_code, report.causes) == (0, ())


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (BEGUN, "job-starting"),
        (BEGUN + PATTERN, "job-starting"),
        (STEPS + BEGUN + "waiting\n", "job-starting"),
        (COMPLETE + BEGUN.replace("0x55d0", "0x66d0").replace("0x7c1", "0x8c1"), "job-starting"),
        (BEGUN + COMPLETE + PEER, "job-failed-cause-not-proven"),
    ],
)  # fmt: skip
def test_incomplete_nccl_setup_or_a_later_warning_is_reported(text: str, cause: str, tmp_path: Path):
    assert [cause.name for cause in judged(tmp_path, text).causes] == [cause]


@pytest.mark.parametrize(
    ("via", "numbers", "named"),
    [
        ("P2P/CUMEM", (1, 1), True),
        ("P2P/IPC/read", (2, 2), True),
        ("SHM/direct/direct", (1, 1), False),
        ("NET/IB/0", (1, 1), False),
        ("P2P/CUMEM", (900, 900), False),
        ("P2P/CUMEM", (1,), False),  # rank 1 may have kept rank 0 waiting
    ],
)
def test_hang_of_the_first_collective_over_p2p_names_the_path_and_a_command(
    via: str, numbers: tuple[int, ...], named: bool, tmp_path: Path
):
    hang = "".join(late(rank, number) for rank, number in enumerate(numbers))
    report = judged(tmp_path, BEGUN + paths(via) + COMPLETE + hang)
    text = " ".join(finding.model_dump_json() for finding in report.findings)

    assert ("iommu-p2p-hang" in [cause.name for cause in report.causes]) is named
    assert ("ddp-doctor run --only topology,p2p" in text) is named
    assert report.exit_code == 3
    if named:
        assert "/".join(via.split("/")[:2]) in report.summary
        assert "IOMMU" in text
        assert "ACS" in text


DRIVER = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


@pytest.mark.parametrize("inset", ["", "               "])
@pytest.mark.parametrize(
    "prefix",
    [
        "[ 1843.308145] ",
        "[Mon Nov 23 10:00:01 2026] ",
        "Nov 23 10:00:01 node1 kernel: ",
        "Nov 23 10:00:01 node1 kernel: [ 1843.308145] ",
        "2026-11-23T10:00:01.123456+00:00 node1 kernel: ",
        "2026-11-23T10:00:01,123456+00:00 ",
        "kern  :err   : [Mon Nov 23 10:00:01 2026] ",
        "",
    ],
)
def test_gpu_off_the_bus_without_an_xid_is_found_in_every_kernel_log_format(prefix: str, inset: str, tmp_path: Path):
    others = f"{prefix}pcieport 0000:b0:01.0: AER: aer_status: 0x00004000\n"
    first, *further = DRIVER
    one_time = prefix + first + "\n" + "".join(f"{others}{inset}{line}\n" for line in further)
    each = "".join(f"{prefix.replace('01 ', '02 ')}{line}\n" for line in DRIVER)

    for text in (one_time, each):
        (finding,) = judged(tmp_path, text).findings
        assert finding.name == "gpu-off-bus"
        assert "0000:b3:00" in finding.title
    other = f"{prefix}{first}\n{inset}NVRM: installed in this system requires the open kernel modules.\n"
    is_of_kernel = "kernel" in prefix or prefix.startswith("[ ")  # other prefixes do not identify a kernel log
    assert [cause.name for cause in judged(tmp_path, other).causes] == ([] if is_of_kernel else ["end-not-shown"])
