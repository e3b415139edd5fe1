"""stragglers: ranks slowed by a quota, a stop, slow products or reads, whom the samples name, and what is unsure."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ddp_doctor import app
from ddp_doctor.checks.collectives.stragglers import CHECK
from ddp_doctor.facts.collectives import StragglersFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording
from ddp_doctor.probing.stragglers import ring, spin, waves
from ddp_doctor.sources import child_data
from tests.checks import planted_stragglers
from tests.checks.judged_ranks import blamed, judge_by, record
from tests.rank_harness import HarnessContext, Ranks

# --- real ranks ------------------------------------------------------------------------------------------


def of_ranks(ranks: Ranks, *planted: Any) -> Recording:
    readings: list[Reading] = ranks.facts(planted_stragglers.measured, *planted)
    return record(CHECK, [], []).model_copy(update={"readings": tuple(readings)})


def warned(recording: Recording) -> list[Finding]:
    """Return findings above info: a busy machine adds info findings to nearly every run."""
    return [finding for finding in judge_by(CHECK, recording) if finding.severity is not Severity.INFO]


@pytest.mark.ranks
@pytest.mark.serial
def test_repeatedly_stopped_rank_is_reported_even_on_a_busy_machine(ranks: Ranks):
    [finding] = warned(of_ranks(ranks, 2, planted_stragglers.stopped_in_bursts))

    assert (finding.code, blamed(finding)) == ("DD661", [2])
    assert finding.title.endswith("(stopped, but not by a quota or another process)")


@pytest.fixture
def control_groups() -> None:
    """Control groups of CPUs that can be made; so does tests/lab/test_cgroup_limits.py skip."""
    group = planted_stragglers.own_group()
    try:
        group.mkdir()
        can = any((group / name).exists() for name in ("cpu.cfs_quota_us", "cpu.max"))
        group.rmdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    if not can:
        pytest.skip("the cpu controller is not given to this part of the tree")


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("plant", "reason"),
    [
        (planted_stragglers.quota, "(stopped by a CPU quota of 0.5 processors)"),
        (planted_stragglers.neighbor, "(waiting for a CPU that other programs use)"),
    ],
)
def test_rank_under_a_quota_or_next_to_a_neighbor_is_reported(control_groups, ranks: Ranks, plant: Any, reason: str):
    readings = ranks.facts(planted_stragglers.calm, 3, plant)

    [finding] = warned(record(CHECK, [], []).model_copy(update={"readings": tuple(readings)}))
    assert (finding.code, blamed(finding), reason in finding.title) == ("DD661", [3], True), finding


@pytest.mark.ranks
def test_slow_reads_of_one_rank_are_reported(ranks: Ranks, tmp_path: Path):
    for number in range(50):
        (tmp_path / f"{number}").write_bytes(os.urandom(30_000))
    (tmp_path / "large").write_bytes(os.urandom(1 << 24))

    recording = of_ranks(ranks, 1, planted_stragglers.slow_reads, str(tmp_path))

    [finding] = warned(recording)
    assert (finding.code, blamed(finding)) == ("DD662", [1])
    assert all(sample.read_bytes_per_s for rank in recording.facts(StragglersFact) for sample in rank.fact.samples)


@pytest.mark.ranks
def test_no_rank_is_reported_on_a_busy_machine_without_a_fault(ranks: Ranks):
    assert warned(of_ranks(ranks, None, planted_stragglers.quota)) == []


def without(ctx: HarnessContext, path: str) -> Reading:
    from ddp_doctor.knowledge import stragglers

    with patch.object(stragglers, "SAMPLES", stragglers.FEWEST_SAMPLES):
        return planted_stragglers.measured(ctx, None, planted_stragglers.quota, path + "/no" * (ctx.rank == 2))


@pytest.mark.ranks
def test_path_missing_on_one_rank_is_reported_for_that_rank(ranks: Ranks, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"data")

    readings = ranks.facts(without, str(tmp_path))

    found = warned(record(CHECK, [], []).model_copy(update={"readings": tuple(readings)}))
    assert [(finding.code, blamed(finding), finding.severity) for finding in found] == [("DD663", [2], Severity.ERROR)]
    assert found[0].title.endswith("No such file or directory")


def hung(ctx: HarnessContext, path: str) -> Reading:
    from ddp_doctor.knowledge import stragglers
    from ddp_doctor.model.context import CommandResult
    from ddp_doctor.sources.machine import LiveContext

    child = LiveContext.child

    def sleeps(self: Any, name: str, *args: str) -> Any:
        if ctx.rank == 3:
            return CommandResult(("data",), "timed_out", queued_s=1.5)
        return self.run(("sleep", "infinity")) if ctx.rank == 0 else child(self, name, *args)

    with (
        patch.object(LiveContext, "child", sleeps),
        patch.object(stragglers, "READS_HANG_S", 2.0),
        patch.object(stragglers, "SAMPLES", stragglers.FEWEST_SAMPLES),
    ):
        return planted_stragglers.measured(ctx, None, planted_stragglers.quota, path)


@pytest.mark.ranks
def test_hanging_reads_end_in_time_and_are_reported(ranks: Ranks, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"data")

    readings = ranks.facts(hung, str(tmp_path))

    [finding] = warned(record(CHECK, [], []).model_copy(update={"readings": tuple(readings)}))
    assert (finding.code, blamed(finding)) == ("DD663", [0])
    assert finding.title.endswith("did not end within 2 s")


@pytest.mark.ranks
def test_data_that_no_rank_can_read_is_a_usage_error(ranks: Ranks, tmp_path: Path):
    readings = ranks.facts(planted_stragglers.measured, None, planted_stragglers.quota, str(tmp_path / "missing"))

    assert [reading.misused for reading in readings] == [True] * 4
    report = app.judge(record(CHECK, [], []).model_copy(update={"readings": tuple(readings)})).report
    assert (report.exit_code, report.summary.startswith("Error: cannot read --data '")) == (2, True)
    assert (readings[0].reason or "").endswith("missing': No such file or directory")


# --- what --data names -----------------------------------------------------------------------------------


def look(path: object, seconds: float = 0.01) -> dict[str, Any]:
    """The answer of the program that reads, here at once."""
    return child_data.main(str(path), seconds, 1, 1 << 26, 64, 4)


def test_special_files_are_not_opened_and_reported(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/proc/meminfo")
    for path in (tmp_path / "pipe", "/dev/zero", "/proc", "/sys", tmp_path / "link"):
        assert "is a FIFO, a device, a socket or of the kernel" in look(path)["problem"]


def test_directory_of_pipes_loops_devices_and_empty_files_has_no_data(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, target in (("up", tmp_path), ("self", "self"), ("gone", "no"), ("zero", "/dev/zero"), ("sys", "/sys")):
        (tmp_path / name).symlink_to(target)
    (tmp_path / "of the kernel").symlink_to("/sys/kernel/notes")

    assert look(tmp_path)["problem"] == "there is no file with bytes in it that may be read"


def test_unreadable_or_missing_files_and_directories_blame_no_rank(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "others").write_bytes(b"secret")
    scandir, access = os.scandir, os.access

    def denied(path: str) -> Any:
        if path.endswith("lost+found"):
            raise PermissionError
        return scandir(path)

    with patch("os.scandir", denied), patch("os.access", lambda path, way: "others" not in path and access(path, way)):
        answer = look(tmp_path)
    assert (answer["problem"], set(answer["read_bytes_per_s"])) == ("", {"small pieces", "four workers"})
    assert child_data.in_pieces([(4, str(tmp_path / "file")), (4, str(tmp_path / "gone"))], 64, 9.0, 1) > 0


def test_data_without_a_readable_byte_was_not_read(tmp_path: Path):
    (tmp_path / "large").write_bytes(b"data")
    with patch.object(child_data, "bytes_in", lambda _: 1 << 22):  # so large it was; then it shrank
        (tmp_path / "large").write_bytes(b"")
        answer = look(tmp_path)
    assert answer == {"problem": "nothing could be read of its files", "read_bytes_per_s": {}}


def test_only_some_files_of_a_very_large_directory_are_read(tmp_path: Path):
    for number in range(50):
        (tmp_path / f"{number}").touch()
    with patch.object(child_data, "MOST_ENTRIES", 20):
        assert len(list(child_data.in_folder(str(tmp_path)))) == 20


# --- turns -----------------------------------------------------------------------------------------------


def test_each_rank_of_a_machine_has_its_own_cpu_in_a_turn():
    cpus_of = {0: (0, 1), 2: (0, 1), 5: (0, 1), 7: (1,)}
    for number in range(20):
        turns = waves(cpus_of, number)
        assert sorted(rank for turn in turns for rank in turn) == [0, 2, 5, 7]
        assert len(turns) == 2
        for turn in turns:
            assert len(set(turn.values())) == len(turn)
            assert all(cpu in cpus_of[rank] for rank, cpu in turn.items())
    assert len({str(waves(cpus_of, number)) for number in range(20)}) > 5


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 9])
def test_every_rank_of_the_ring_meets_both_neighbors_once(ranks: int):
    turns = ring(ranks)
    pairs = [tuple(sorted(pair)) for turn in turns for pair in turn]
    assert sorted(pairs) == sorted({tuple(sorted((rank, (rank + 1) % ranks))) for rank in range(ranks)})
    for turn in turns:
        assert len({rank for pair in turn for rank in pair}) == 2 * len(turn)


def test_spinning_loop_counts_its_lost_time():
    now = iter([0.0, 0.00001, 0.05001, 0.05002, 0.30002])
    with patch("time.perf_counter", lambda: next(now)):
        spun, taken, longest = spin(0.2)
    assert (spun, round(taken, 5), round(longest, 5)) == (0.30002, 0.3, 0.25)
