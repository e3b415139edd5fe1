"""The table of step times, of recorded runs."""

from ddp_doctor.render import tables
from tests.recordings import judged


def shown(situation: str) -> tuple[str, ...]:
    return tables.lines(tables.step_table(judged(situation).report.measurements))


def test_a_step_is_shown_with_its_parts_and_the_bucket_sizes_that_were_tried():
    caption, heading, _row, *more = shown("step_time/slow-link-with-own-model")

    assert heading.split() == ["computing", "step", "waiting", "communication", "overlap", "weak", "strong"]
    assert caption == " A training step of 2 ranks, 4.02 MiB of gradients:"
    assert more == [
        "   buckets of 25 MiB: predicted 0.643 s, measured 0.607 s",
        "   buckets of 0.25 MiB: predicted 0.494 s, measured 0.489 s",
    ]


def test_ranks_that_share_processors_have_no_columns_of_scaling():
    _caption, heading, *_more = shown("step_time/four-ranks-on-two-processors")

    assert heading.split() == ["computing", "step", "waiting", "communication", "overlap"]


def test_table_is_empty_without_steps():
    assert tables.lines(tables.step_table(())) == ()
