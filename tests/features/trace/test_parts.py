"""The parts of a step add up, and waiting is distinguished from transfer if the peers are known."""

import pytest

from ddp_doctor.features.trace.views.parts import Parts, median_parts, parts
from ddp_doctor.features.trace.views.windows import windows
from tests.features.trace.made_facts import TRANSFER_US, job, of_rank, recording
from tests.recordings import load

SLOW = recording(job([[20_000.0, 20_000.0, 26_000.0], [50_000.0] * 3]))


def test_waiting_rank_waits_and_late_rank_only_transfers():
    [window] = windows(SLOW)
    first, second = median_parts(SLOW, window)

    assert (first.waiting, first.transfer, first.not_told) == (30_000.0, TRANSFER_US, 0.0)
    assert (second.waiting, second.transfer, second.compute) == (0.0, TRANSFER_US, 50_000.0)


def test_the_median_step_is_of_median_length_and_its_parts_add_up_to_it():
    for made in (SLOW, load("trace/slow-compute"), load("trace/slow-compute-on-gpus"), load("trace/pauses")):
        for window in windows(made):
            for each, median in zip(parts(made, window), median_parts(made, window), strict=True):
                for one in (*each, median):
                    assert sum(one[1:-1]) == pytest.approx(one.step, rel=1e-3)
                assert min(one.step for one in each) <= median.step <= max(one.step for one in each)


def told(one: Parts) -> tuple[float, float, float]:
    return one.waiting, one.transfer, one.not_told


def test_waiting_is_known_but_not_transfer_for_some_ranks_of_a_larger_job():
    some = recording(job([[20_000.0] * 3, [50_000.0] * 3, [60_000.0] * 3])[:2])

    assert told(parts(some, windows(some)[0])[0][0]) == (30_000.0, 0.0, 10_000.0 + TRANSFER_US)


def test_unmatched_collective_is_neither_waiting_nor_transfer():
    ranks = job([[20_000.0] * 3, [50_000.0] * 3])
    short = recording(of_rank(ranks, 1, calls=ranks[1].calls[1:]))

    assert [told(one)[2] > 0 for one in parts(short, windows(short)[0])[0]] == [True, False, False]
