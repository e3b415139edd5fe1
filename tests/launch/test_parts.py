"""A check of several parts: a rank that hangs in one of them costs the others nothing."""

import pytest

from ddp_doctor.checks.collectives import collectives
from ddp_doctor.facts.collectives import CollectiveFact
from ddp_doctor.knowledge.collectives import TABLE
from ddp_doctor.model.choices import CheckStatus, Level, Status
from ddp_doctor.model.recording import Floor, Options
from tests.launch import misbehaving
from tests.launch.conftest import Play, Scenario

pytestmark = pytest.mark.ranks

PARTS = ("broadcast", "all_gather", "all_to_all", "gather")
HANGS_S = 4.0


def parts(_options: Options) -> tuple[str, ...]:
    return PARTS


def read(scenario: Scenario) -> dict[str, list[int]]:
    facts = scenario.outcome.recording.facts(CollectiveFact)
    return {part: sorted(rank.rank or 0 for rank in facts if rank.fact.part == part) for part in PARTS}


def test_rank_that_hangs_in_one_part_is_reported_and_other_parts_are_measured(play: Play):
    scenario = play(misbehaving.hangs_in_one_part, ranks=3, deadline_s=HANGS_S, parts=parts)

    assert (scenario.codes, scenario.culprits) == (["DD610"], [misbehaving.BAD])
    assert read(scenario) == {"broadcast": [0, 1, 2], "all_gather": [], "all_to_all": [0, 1, 2], "gather": [0, 1, 2]}
    (untold,) = [
        reading for reading in scenario.outcome.recording.of_check("scenario") if reading.status is Status.TIMED_OUT
    ]
    assert (untold.rank, (untold.reason or "").partition(":")[0]) == (misbehaving.BAD, "all_gather")


def test_part_that_does_not_apply_is_read_and_does_not_hide_a_hang(play: Play):
    scenario = play(misbehaving.hangs_after_a_part_that_is_skipped, ranks=2, deadline_s=HANGS_S, parts=parts)

    assert (scenario.codes, scenario.culprits) == (["DD610"], [misbehaving.BAD])
    assert read(scenario) == {"broadcast": [], "all_gather": [], "all_to_all": [0, 1], "gather": []}
    told = {(reading.part, reading.status) for reading in scenario.outcome.recording.of_check("scenario")}
    assert told == {
        ("broadcast", Status.SKIPPED),
        ("all_gather", Status.TIMED_OUT),
        ("all_to_all", Status.COLLECTED),
        ("gather", Status.SKIPPED),
    }
    assert scenario.outcome.report.checks[-1].status is CheckStatus.TIMED_OUT


def test_rank_that_hangs_in_a_second_collective_skips_the_others(play: Play):
    scenario = play(misbehaving.hangs_in_every_part, ranks=3, deadline_s=HANGS_S, parts=parts)

    assert set(scenario.culprits) == {misbehaving.BAD}
    assert read(scenario) == {"broadcast": [], "all_gather": [], "all_to_all": [0, 2], "gather": [0, 2]}


def test_options_determine_the_parts():
    floor = Floor(collective="reduce", size_bytes=1 << 20, bytes_per_s=1e9)

    assert collectives.parts(Options()) == ()
    assert collectives.parts(Options(level=Level.THOROUGH)) == tuple(TABLE)
    assert collectives.parts(Options(only=("collectives",))) == tuple(TABLE)
    assert collectives.parts(Options(collectives=("gather", "broadcast"))) == ("broadcast", "gather")
    assert collectives.parts(Options(level=Level.THOROUGH, min_busbw=(floor,))) == tuple(TABLE)
    assert collectives.parts(Options(only=("collectives",), min_busbw=(floor,))) == ("reduce",)
