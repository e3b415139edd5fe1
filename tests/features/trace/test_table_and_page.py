"""The table and the pictures of traces, of ranks that are made up."""

import re
from collections.abc import Sequence

from ddp_doctor import app
from ddp_doctor.app import Outcome
from ddp_doctor.features.trace import table as trace_table
from ddp_doctor.features.trace.facts import Gap, TraceCall, TraceFact, TraceStep
from ddp_doctor.features.trace.report import TraceReport
from ddp_doctor.model.choices import Command, FailOn, Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.render import markdown
from ddp_doctor.render.html import page
from tests.readings import collected
from tests.render.test_html import EVIL, Page

MS = 1e3


def rank(number: int, computes: Sequence[float], *, slowest: Sequence[float] = (), **given: object) -> TraceFact:
    """A rank that computes so many ms in each step; then it is in an all-reduce until 10 ms after the slowest."""
    steps: list[TraceStep] = []
    calls: list[TraceCall] = []
    end = 0.0
    for at, (compute, longest) in enumerate(zip(computes, slowest or computes, strict=True)):
        begin, end = end, end + (longest + 30) * MS
        reduces = (begin + compute * MS, begin + (longest + 10) * MS)
        alone_us = reduces[1] - reduces[0]
        steps.append(
            TraceStep(
                number=at,
                begin_us=begin,
                end_us=end,
                compute_us=compute * MS,
                optimizer_us=20 * MS,
                exposed_us=alone_us,
                exposed=(reduces,),
                gap=Gap(begin_us=begin, end_us=begin + MS, inside=("train", "log")),
                ops=100,
                op_us=compute * MS,
                updates=1,
                passes=1,
            )
        )
        called = {"called_us": reduces[0], "step": at, "size_bytes": 4096, "during": "backward", "exposed_us": alone_us}
        told = {"kind": "all_reduce", "begin_us": reduces[0], "end_us": reduces[1]}
        calls.append(TraceCall.model_validate(told | called))
    of_rank = {"rank": number, "world_size": 2, "file": f"rank{number}.json", "host": "node0"}
    more = {"is_ddp": True, "left_out": 1, "marked_by": "profiler", "steps": steps, "calls": calls}
    return TraceFact.model_validate(of_rank | more | given)


def judged(*facts: TraceFact, window: str = "latest", unread: Sequence[tuple[str, str]] = ()) -> Outcome:
    readings = [collected("trace", fact, rank=fact.rank) for fact in facts]
    readings += [Reading(check="trace", status=Status.SKIPPED, part=name, reason=why) for name, why in unread]
    options = Options(command=Command.TRACE, window=window, fail_on=FailOn.WARNING)
    return app.judge(
        Recording(run_id="x", started_at="2026-11-27T15:00:00Z", options=options, readings=tuple(readings))
    )


def tables(outcome: Outcome, *, each: bool = False) -> list[str]:
    assert isinstance(outcome.report, TraceReport)
    return ["\n".join(table.lines(80)) for table in trace_table.tables(outcome.report, outcome.recording, each=each)]


def test_table_shows_the_waiting_rank_and_the_cause_of_the_longest_step():
    slow = [60, 60, 60, 160]
    [table] = tables(judged(rank(0, [20] * 4, slowest=slow), rank(1, slow)))

    rows = [line.replace("!!", "").split() for line in table.split("\n")[1:4]]
    assert rows[0] == ["rank", "step", "compute", "optimizer", "waiting", "transfer"]
    assert rows[1] == ["0", "90.0", "20.0", "20.0", "40.0", "10.0"]
    assert rows[2] == ["1", "90.0", "60.0", "20.0", "0.0", "10.0"]
    whole = " ".join(table.split())
    assert "the longest step is number 3, 190.0 ms: compute of rank 1 takes 100.0 ms more than usual" in whole
    assert max(map(len, table.split("\n"))) <= 80


def test_blamed_ranks_of_many_come_first_and_v_shows_each():
    slow = [60] * 4
    facts = [rank(number, slow if number == 33 else [20] * 4, slowest=slow, world_size=40) for number in range(40)]
    outcome = judged(*facts)

    [table] = tables(outcome)
    [whole] = tables(outcome, each=True)

    assert re.search(r"^ +!! 33 ", table, re.MULTILINE)
    assert table.count("\n") < 24
    assert "and 24 more ranks (-v shows each)" in table
    assert len(re.findall(r"^ +(?:!! )?\d+ +90\.0 ", whole, re.MULTILINE)) == 40


def test_truncated_or_damaged_file_is_reported():
    [table] = tables(judged(rank(0, [20, 20, 20], cut=True), rank(1, [20, 20, 20], damaged=3)))

    whole = " ".join(table.split())
    assert "the file of rank 0 is cut off; its complete steps are used" in whole
    assert "the file of rank 1 is damaged: 3 of its events could not be read" in whole


def test_each_window_has_its_own_table():
    first = [rank(number, [20, 20, 20]) for number in (0, 1)]
    second = [
        fact.model_copy(
            update={
                "begin_us": 1e9,
                "steps": tuple(step.model_copy(update={"number": step.number + 20}) for step in fact.steps[:2]),
                "calls": fact.calls[:2],
            }
        )
        for fact in first
    ]

    early, late = tables(judged(*first, *second, window="all"))

    assert "Window 1: the median of 3 steps of 2 ranks, in ms:" in early
    assert "Window 2: the median of 2 steps of 2 ranks, in ms:" in late
    assert len(tables(judged(*first, *second))) == 1


def test_waiting_and_transfer_of_a_single_rank_are_one_column():
    [table] = tables(judged(rank(0, [20, 20, 20])))

    assert "3 steps of 1 of 2 ranks" in table
    assert re.search(r" waiting or\n +transfer\n", table)


def test_only_three_unread_files_are_named_on_a_screen():
    unread = [(f"file{number}", "it is empty") for number in range(5)]
    outcome = judged(rank(0, [20, 20]), rank(1, [20, 20]), unread=unread)

    assert tables(outcome)[0].count("not read: file") == 3
    assert "not read: 2 more (-v lists them)" in tables(outcome)[0]
    assert tables(outcome, each=True)[0].count("not read: file") == 5


def test_page_has_a_bar_and_two_time_lines_for_each_rank():
    slow = [20, 20, 70]
    outcome = judged(rank(0, [20, 20, 20], slowest=slow), rank(1, slow, begin_us=5e6))
    read = Page(page.render(outcome.report, outcome.recording))

    assert read.text.count("rank 0") == 3
    assert "Step 0, the median" in read.text
    bars = [attributes for tag, attributes in read.tags if tag == "i" and "transfer" in attributes.get("class", "")]
    drawn = [bar["style"] for bar in bars if "all_reduce of 4096 B" in bar.get("title", "")]
    ends = [sum(map(float, re.findall(r"[\d.]+", style))) for style in drawn]
    assert ends == [60.0, 60.0, 80.0, 80.0]  # of both ranks in the median step, then in the longest


def test_names_from_a_trace_are_shown_as_plain_text():
    gap = Gap(begin_us=0, end_us=MS, inside=(EVIL,))
    evil = rank(0, [20, 20], file=EVIL, host=EVIL)
    steps = [step.model_copy(update={"gap": gap}) for step in evil.steps]
    calls = [call.model_copy(update={"kind": EVIL}) for call in evil.calls]
    outcome = judged(
        evil.model_copy(update={"steps": tuple(steps), "calls": tuple(calls), "rank": None}), unread=[(EVIL, EVIL)]
    )
    read = Page(page.render(outcome.report, outcome.recording))

    assert {"script", "img"}.isdisjoint(tag for tag, _ in read.tags)
    assert "\x1b" not in markdown.render(outcome.report, outcome.recording)
