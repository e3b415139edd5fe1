"""Counts of a job's steps, in its output and gloo's threads, and the reports about a fall."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddp_doctor.features.jobs.reading.ras import launches
from ddp_doctor.features.jobs.reading.steps_said import numbers_of_steps
from ddp_doctor.features.jobs.watch import slowdown, step_counts
from ddp_doctor.features.jobs.watch.evidence import Output
from ddp_doctor.features.jobs.watch.pace import Fall, LastRank, Look
from ddp_doctor.features.jobs.watch.slowdown import Slowdown
from ddp_doctor.features.jobs.watch.step_counts import Doors, Gloo, Said, Source


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step 400, loss 2.31", [("step", 400)]),
        ('{"global_step": 400, "loss": 2.31}', [("global_step", 400)]),
        ("Epoch 3, batch 12/938", [("batch", 12)]),
        (" 12%|█▏        | 120/1000 [00:10<01:13, 12.0it/s]", [("", 120)]),
        ("val step 3 loss 2.1", []),
        ("evaluating: 12%|█▏ | 120/1000 [00:10<01:13]", []),
        ("batch size 32, 12.0it/s, loss 0.3", []),
    ],
)
def test_step_number_is_read_from_a_line(line, found):
    assert numbers_of_steps(f"{line}\n") == found


def said_of(path: Path, *texts: str) -> list[dict[Source, int]]:
    """Append each text to a file, and return the counts after each."""
    said, found = Said(), []
    for text in texts:
        with path.open("a") as file:
            file.write(text)
        found.append({source: look.total for source, look in said.look(0.0, [Output(str(path), 0)])})
    return found


def test_steps_are_counted_across_epochs_several_ranks_and_split_lines(tmp_path):
    first = "".join(f"step {number}\n" for number in (1, 2, 3, 4, 5, 4, 6))
    found = said_of(tmp_path / "out", first, "step 1", "0\n", "epoch 2\nstep 1\nstep 3\n", "step 4\n")

    assert [seen.get(Source.STEPS) for seen in found] == [5, 5, 9, 11, 12]
    assert [seen[Source.LINES] for seen in found] == [7, 7, 8, 11, 12]


def test_counting_continues_after_a_file_is_truncated(tmp_path):
    said, output = Said(), Output(str(tmp_path / "out"), 0)
    lines = []
    for text in ("a\n" * 9, "", "b\n"):
        (tmp_path / "out").write_text(text)
        lines.append(dict(said.look(0.0, [output]))[Source.LINES].total)

    assert lines == [9, 9, 10]


def test_output_without_step_numbers_is_counted_in_lines(tmp_path):
    assert said_of(tmp_path / "out", "loss 0.3\nloss 0.2\n") == [{Source.LINES: 2}]


def test_missing_file_and_huge_file_do_not_stop_the_counting(tmp_path):
    with (tmp_path / "big").open("wb") as file:
        file.truncate(8 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b"\nstep 4\n")

    looks = dict(Said().look(0.0, [Output(str(tmp_path / "none"), 0), Output(str(tmp_path / "big"), 0)]))
    assert looks[Source.LINES].total == 2


WORKS, IDLE = (
    "202 0x1 0x189 0x0 0x7f67 0x0 0xffffffff 0x7f6743 0x7f67",
    "202 0x1 0x189 0x0 0x0 0x0 0xffffffff 0x7f 0x7f",
)


@pytest.mark.parametrize(
    ("calls", "waits", "last"),
    [
        ([WORKS, IDLE, WORKS], True, 1),
        ([WORKS, "98 0x1 0x189 0x0 0x0 0x0 0xff 0x7f 0x7f", "running"], True, 1),
        ([WORKS, IDLE, IDLE], True, None),
        ([IDLE] * 3, False, None),
        ([WORKS] * 3, False, None),
        (["", "", ""], False, None),  # the kernel does not show it
    ],
)
def test_last_rank_is_the_only_rank_outside_a_collective(monkeypatch, calls, waits, last):
    written = 1_000
    monkeypatch.setattr("ddp_doctor.sources.proc.environment", lambda pid: {"RANK": str(pid - 70), "WORLD_SIZE": "3"})
    monkeypatch.setattr(
        "ddp_doctor.sources.proc.threads", lambda _: {1: "python", 2: "gloo_tcp_loop", 3: "pt_gloo_runloop"}
    )

    def read(path: str) -> str | None:
        _, _, pid, _, _, kind = path.split("/")
        return calls[int(pid) - 70] if kind == "syscall" else f"rchar: 9\nwchar: {written}\nsyscr: 1\n"

    monkeypatch.setattr("ddp_doctor.sources.proc.read", read)
    gloo = Gloo()
    gloo.search([70, 71, 72])
    assert gloo.look(0.0).total == 0
    written = 1_500

    assert gloo.look(5.0) == Look(5.0, 1_000, waits, last)


def test_gloo_threads_of_an_nccl_job_are_ignored(monkeypatch):
    monkeypatch.setattr("ddp_doctor.sources.proc.environment", lambda _: {"RANK": "0"})
    monkeypatch.setattr(
        "ddp_doctor.sources.proc.threads", lambda pid: {pid: "pt_gloo_runloop", pid + 1: "pt_nccl_watchdg"}
    )
    gloo = Gloo()
    gloo.search([70])

    assert gloo.threads == []


def test_ras_shows_the_rank_with_the_fewest_launches(monkeypatch):
    ranks = [{"rank": rank, "collective_counts": {"AllReduce": 9, "Broadcast": rank != 1}} for rank in range(3)]
    small = {"size": 1, "ranks": [{"rank": 0, "collective_counts": {"AllReduce": 90}}]}
    answer = '{"communicators": [' + ", ".join(str({"size": 3, "ranks": ranks}).replace("'", '"').split("\n"))
    answer = answer.replace("True", "1").replace("False", "0") + f", {str(small).replace(chr(39), chr(34))}]}}"
    assert launches(f"OK\n{answer}") == {0: 10, 1: 9, 2: 10}
    assert launches("ERROR: Unknown command\nJob summary\n===") == {}

    def ask(_pids: object, file: int) -> int:
        os.pwrite(file, b'["RAS", 7.0, {"0": 10, "1": 9, "2": 10}]', 0)
        return 0

    monkeypatch.setattr(step_counts, "_ask", ask)
    doors, seen = Doors(), None
    while seen is None:
        seen = doors.look(7.0, [70])
    doors.close()
    assert seen == (Source.RAS, Look(7.0, 10, waits=True, last=1))


class Told:
    """A sampled job with falls, by source, that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, speaks: bool = True) -> None:
        monkeypatch.setattr(slowdown, "_clock", lambda at_s: f"{int(at_s) // 60:02}:{int(at_s) % 60:02}")
        self.slowdown = Slowdown(SimpleNamespace(outputs=list), (), speaks=speaks)  # type: ignore[arg-type]

    def has(self, source: Source, windows: int, fall: Fall | None, last: LastRank | None = None) -> "Told":
        found = SimpleNamespace(windows=range(windows), fall=fall, last_rank=lambda: last)
        self.slowdown._paces[source] = found  # type: ignore[assignment]
        return self


@pytest.mark.parametrize(
    ("source", "fall", "last", "told"),
    [
        (
            Source.STEPS,
            Fall(134, 4.12, 1.31),
            None,
            "became slower at 02:14: from 4.1 to 1.3 steps per second, measured by its output",
        ),
        (
            Source.GLOO,
            Fall(134, 5e6, 1.8e6),
            LastRank(5, 9, 10),
            "became slower at 02:14: from 5 to 1.8 MB per second, {}; rank 5 was last in 9 of 10 {}",
        ),
        (
            Source.RAS,
            Fall(134, 0.1, 0.05, 800),
            None,
            "was slower from 02:14 to 13:20: from 6 to 3 collectives per minute, measured by NCCL RAS",
        ),
        (Source.STEPS, Fall(134, 4, 1, 200), None, ""),  # soon over
        (Source.LINES, Fall(134, 100, 3), None, ""),  # most of 100 lines per second are of another kind
    ],
)
def test_slowdown_is_reported_with_its_time_rates_and_source(monkeypatch, source, fall, last, told):
    assert Told(monkeypatch).has(source, 40, fall, last).slowdown.whole() == told.format(
        source.value[1], "samples of waiting ranks"
    )


def test_only_the_best_source_with_enough_samples_is_used(monkeypatch):
    job = Told(monkeypatch).has(Source.GLOO, 30, None).has(Source.LINES, 40, Fall(134, 4, 1))
    assert job.slowdown.whole() == ""

    job.has(Source.GLOO, 3, None)
    assert "by the lines of its output" in job.slowdown.whole()


def test_start_and_end_of_a_slowdown_are_reported_once(monkeypatch):
    job = Told(monkeypatch)
    falls = [None, Fall(134, 4, 1), Fall(134, 4, 1.1), Fall(134, 4, 1.1, 200), Fall(134, 4, 1.1, 200), Fall(300, 4, 1)]
    news = [job.has(Source.STEPS, 40, fall).slowdown.news() for fall in falls]

    assert [text.partition(":")[0] for text in news] == [
        "",
        "became slower at 02",
        "",
        "became faster again at 03",
        "",
        "became slower at 05",
    ]


def test_watcher_of_another_node_reports_a_slowdown_only_with_a_rank(monkeypatch):
    job = Told(monkeypatch, speaks=False)

    assert job.has(Source.GLOO, 40, Fall(134, 4, 1)).slowdown.whole() == ""
    assert "rank 5" in job.has(Source.GLOO, 40, Fall(134, 4, 1), LastRank(5, 9, 10)).slowdown.whole()


def test_time_on_another_day_includes_the_date(monkeypatch):
    monkeypatch.setattr("time.monotonic", lambda: 200_000.0)

    assert len(slowdown._clock(199_000.0)) == len("02:14")
    assert len(slowdown._clock(100_000.0)) == len("Nov 28 02:14")
