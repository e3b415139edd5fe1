"""The report of a failed job: its ranks, the cause and its place, from facts written by hand."""

import io
import json
import re
from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.facts.given import FlightDumpFact, GroupSeen
from ddp_doctor.features.jobs.facts import FileSeen, JobLogFact, LogLine, RankSeen, SignSeen
from ddp_doctor.model.choices import Detail
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.trial import FlightEntry
from ddp_doctor.render import markdown, terminal
from ddp_doctor.render.screen import console
from tests.readings import collected
from tests.render.reports import Screen

OUT = "slurm-4711.out"


def line(text: str, number: int = 1) -> LogLine:
    return LogLine(file=OUT, line=number, text=text)


def rank(number: int, *, gpus: int = 4, **ended: Any) -> RankSeen:
    last = line(f"step {number}20 loss 2.{number}", 500 + number)
    fields = {"signal": "SIGABRT", **ended}
    return RankSeen(rank=number, host=f"node{number // gpus}", pid=900 + number, gpu=number % gpus, last=last, **fields)


def time_out(ranks: range) -> SignSeen:
    values = {"seq": "17", "op": "ALLREDUCE", "numel": "1024"}
    return SignSeen(sign="watchdog-timeout", where=line("Watchdog caught …", 480), values=values, ranks=(*ranks,))


def recording(*facts: Fact, signs: tuple[SignSeen, ...] = (), ranks: tuple[RankSeen, ...] = ()) -> Recording:
    files = (
        FileSeen(name=OUT, kind="output", lines=1500),
        FileSeen(name="core.7", kind="binary", unread="it is binary"),
    )
    job = JobLogFact(files=files, signs=signs, ranks=ranks, world_size=len(ranks) or None, launcher="torchrun")
    readings = tuple(collected("logs", fact) for fact in (job, *facts))
    return Recording(run_id="r", options=Options(command="logs"), readings=readings)


def raised(number: int) -> SignSeen:
    values = {"type": "IndexError", "message": "list index out of range", "where": "data.py:17"}
    return SignSeen(sign="exception", rank=number, where=line("IndexError: list …", 470), values=values)


#: Rank 5 raised an exception, and the seven other ranks waited for it.
FAILED = recording(
    signs=(raised(5), *(time_out(range(at, at + 1)) for at in (0, 1, 2, 3, 4, 6, 7))),
    ranks=tuple(rank(at) if at != 5 else rank(5, signal=None, exit_code=1) for at in range(8)),
)


def shown(
    of: Recording, width: int | None = None, detail: Detail = Detail.SCREEN, out: io.StringIO | None = None
) -> str:
    outcome = app.judge(of)
    out = out or io.StringIO()
    terminal.show(outcome.report, of, console(out, width=width), detail=detail)
    return out.getvalue()


def test_equal_ranks_share_a_row_and_the_blamed_rank_comes_first():
    rows = [row.split("  ") for row in shown(FAILED).splitlines() if row.startswith((" !! rank", " rank"))]

    assert rows[0][0] == " !! rank 5"
    assert [cell.strip() for cell in rows[1] if cell] == [
        *("ranks 0-4, 6, 7", "2 hosts", "-", "-", "SIGABRT", "all-reduce 17", "step 020 loss 2.0")
    ]


def test_report_shows_the_cause_its_location_and_the_verdict():
    text = shown(FAILED)

    assert "8 ranks on 2 nodes, torchrun; 1 file, 1,500 lines\nNot read: core.7: it is binary\n" in text
    assert "ERROR DDJ160 Rank 5 (node1, GPU1) stopped in data.py:17: IndexError: list index out of range\n" in text
    assert "Ranks 0-4, 6, 7 (node0 and node1) waited in all-reduce 17 of 1024 elements." in text
    assert "- slurm-4711.out:470: IndexError: list …" in text
    assert "The fault is in the job's code. If restarted unchanged, the job fails again." in text
    assert text.splitlines()[-1].startswith("Failed: Rank 5 (node1, GPU1) stopped")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_report_fits_the_width_of_the_terminal(width: int):
    text = re.sub(r"\x1b\[[\d;]*m", "", shown(FAILED, width, out=Screen()))

    assert max(map(len, text.splitlines())) <= width


def test_thousands_of_ranks_take_a_few_rows_or_one_each_in_full_detail():
    many = recording(signs=(time_out(range(4096)),), ranks=tuple(rank(number, gpus=8) for number in range(4096)))

    text = shown(many)

    assert " ranks 0-4095  512 hosts  SIGABRT  all-reduce 17" in text
    assert len(text.splitlines()) < 25
    assert "\n rank 4095  node511  4995  7 " in shown(many, detail=Detail.ALL)
    assert text.splitlines()[-1] == (
        "Failed, cause not proven: all 4096 ranks waited in all-reduce 17 of 1024 elements: the cause is unknown."
    )


def test_short_report_starts_with_the_cause():
    assert shown(FAILED, detail=Detail.VERDICT).lstrip().startswith("ERROR DDJ160")


@pytest.mark.parametrize(
    ("ranks", "signs", "verdict", "code", "words"),
    [
        ((rank(0, signal=None),), (), "unsure", 3, "The end of the job is unknown"),
        ((rank(0), rank(1)), (time_out(range(2)),), "unsure", 3, "Failed, cause not proven: "),
        ((rank(0), rank(1)), (raised(1),), "unhealthy", 1, "Failed: Rank 1 "),
    ],
)
def test_exit_code_depends_on_whether_the_cause_is_known(ranks, signs, verdict: str, code: int, words: str):
    report = app.judge(recording(ranks=ranks, signs=signs)).report

    assert (report.verdict.value, report.exit_code) == (verdict, code)
    assert report.summary.startswith(words)


def test_row_of_a_rank_shows_the_state_from_its_dump():
    def dump(number: int, *, retired: bool) -> FlightDumpFact:
        entries = (FlightEntry(seq=3, op="all_reduce", retired=retired, group="0"),)
        group = GroupSeen(name="0", ranks=(0, 1), entries=entries, highest_seq=3)
        return FlightDumpFact(file=f"rank{number}", rank=number, world_size=2, groups=(group,))

    torn = FlightDumpFact(file="rank2", rank=2, problem="it is cut off")
    text = shown(recording(dump(0, retired=True), dump(1, retired=False), torn))

    assert [row.split("  ")[-1].strip() for row in text.splitlines() if row.startswith((" rank", " !! rank"))] == [
        *("idle after 3", "all-reduce 3", "dump: it is cut off")
    ]


def test_blamed_rank_without_output_has_a_row_and_is_counted():
    def dump(number: int) -> FlightDumpFact:
        entries = (FlightEntry(seq=3, op="all_reduce", group="0"),)
        group = GroupSeen(name="0", ranks=(0, 1, 2, 3), entries=entries, highest_seq=3)
        return FlightDumpFact(file=f"rank{number}", rank=number, groups=(group,))

    text = shown(recording(*map(dump, range(3))))

    assert "\n4 ranks" in text
    assert " !! rank 3 " in text


def test_unproven_cause_has_no_restart_advice_and_empty_files_are_only_counted():
    killed = recording(ranks=(rank(0, signal="SIGTERM"), rank(1, signal="SIGKILL")))
    job = killed.readings[0]
    empty = FileSeen(name="stderr.log", kind="empty", unread="it is empty").model_dump()
    said = job.fact or {}
    fact = {**said, "files": [*said["files"], empty]}
    text = shown(killed.model_copy(update={"readings": (job.model_copy(update={"fact": fact}),)}))

    assert "cause not proven: rank 1 (node0, GPU1) was killed by SIGKILL" in text
    assert "fails again" not in text
    assert "lines, and 1 empty" in text
    assert "stderr.log" not in text


def test_ignored_failure_is_not_reported_as_no_failure():
    options = Options(command="logs", ignore=("DDJ160",))

    assert "No other failure found in 1 file" in shown(FAILED.model_copy(update={"options": options}))


def test_json_and_markdown_contain_the_causes_and_facts():
    outcome = app.judge(FAILED)
    data = json.loads(outcome.report.as_json())

    assert data["causes"][0]["class"] == "rank-exception"
    assert data["causes"][0]["lines"] == [{"file": OUT, "line": 470, "text": "IndexError: list …"}]
    assert data["causes"][0]["culprits"][0]["rank"] == 5
    assert data["facts"]["ranks"] == 8
    assert data["facts"]["nodes"] == ["node0", "node1"]
    page = markdown.render(outcome.report, FAILED)
    assert "!! rank 5" in page
    assert "Checks: " not in page
