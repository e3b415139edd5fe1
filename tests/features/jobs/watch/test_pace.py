"""Falls of the pace in the counts of simulated jobs, and changes that are not a fall."""

import random
from collections.abc import Callable

import pytest

from ddp_doctor.features.jobs.watch.pace import Fall, LastRank, Look, Pace

EVERY_S = 5.0


class Job:
    """A job sampled every five seconds. Tests set its steps per second, and the ranks that others wait for."""

    def __init__(self, noise: float = 0.05, seed: int = 0) -> None:
        self.pace = Pace()
        self.at_s = 1_000.0
        self.steps = 0.0
        self.noise = noise
        self.random = random.Random(seed)
        self.found: list[tuple[float, Fall]] = []

    def runs(self, minutes: float, rate: float, *, last: dict[int, float] | None = None) -> "Job":
        """Run at a rate. ``last``: the share of samples in which others wait for a rank."""
        for _ in range(round(minutes * 60 / EVERY_S)):
            self.at_s += EVERY_S
            self.steps += rate * EVERY_S * max(self.random.gauss(1, self.noise), 0)
            at, named = self.random.random(), None
            for rank, share in (last or {}).items():
                if 0 <= at < share:
                    named = rank
                at -= share
            self.pace.add(Look(self.at_s, round(self.steps), named is not None, named))
            if self.pace.fall and (not self.found or self.found[-1][1].since_s != self.pace.fall.since_s):
                self.found.append((self.at_s, self.pace.fall))
        return self

    def minutes(self, at_s: float) -> float:
        return (at_s - 1_000.0) / 60


def test_lasting_slowdown_is_found_after_a_minute_with_its_time_and_rates():
    job = Job().runs(2, 20).runs(3, 7)

    assert job.pace.fall is not None
    assert [job.pace.fall.before, job.pace.fall.after] == pytest.approx([20, 7], rel=0.1)
    assert job.minutes(job.pace.fall.since_s) == pytest.approx(2, abs=0.4)
    assert job.minutes(job.found[0][0]) == pytest.approx(3, abs=0.5)
    assert job.pace.fall.until_s is None


def test_slowdown_of_a_long_job_is_found_after_ten_minutes():
    job = Job().runs(100, 20).runs(15, 12)

    assert [job.minutes(at) for at, _ in job.found] == [pytest.approx(110, abs=1)]


SILENT: dict[str, Callable[[Job], Job]] = {
    "a steady job": lambda job: job.runs(90, 20),
    "a slow warm-up": lambda job: job.runs(5, 2).runs(60, 20),
    "a burst at the start": lambda job: job.runs(0.25, 400).runs(60, 20),
    "a little slower": lambda job: job.runs(30, 20).runs(60, 17),
    "a pause": lambda job: job.runs(30, 20).runs(60, 0).runs(30, 20),
    "a hang at the end": lambda job: job.runs(30, 20).runs(60, 0),
    "checkpoints": lambda job: [job.runs(5, 20).runs(0.5, 0) for _ in range(20)][-1],
    "evaluations with less output": lambda job: [job.runs(30, 20).runs(6, 5) for _ in range(6)][-1].runs(2, 20),
    "long evaluations with rare collectives": lambda job: [job.runs(30, 20).runs(12, 0.4) for _ in range(2)][-1],
    "an evaluation at the end": lambda job: job.runs(60, 20).runs(9, 4),
    "it speeds up": lambda job: job.runs(30, 20).runs(30, 40),
    "too short to tell": lambda job: job.runs(0.7, 20).runs(5, 5),
}


@pytest.mark.parametrize("situation", SILENT)
def test_pace_without_a_lasting_slowdown_is_not_reported(situation):
    assert [SILENT[situation](Job(seed=seed)).found for seed in range(2)] == [[]] * 2


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.6, 1.0])
def test_noise_is_not_a_slowdown(noise):
    assert [seed for seed in range(10) if Job(noise, seed).runs(30, 20).found] == []


def test_slowdown_of_steps_that_take_minutes_is_found():
    job = Job(noise=0).runs(120, 1 / 150).runs(120, 1 / 600)

    assert job.pace.fall is not None
    assert job.minutes(job.pace.fall.since_s) == pytest.approx(120, abs=12)


def test_end_of_a_slowdown_is_kept_and_the_next_slowdown_is_found():
    job = Job().runs(30, 20).runs(20, 5).runs(30, 20)
    assert job.pace.fall is not None
    assert job.pace.fall.until_s is not None
    assert job.minutes(job.pace.fall.until_s) == pytest.approx(50, abs=1)

    job.runs(20, 5)
    assert [job.minutes(fall.since_s) for _, fall in job.found] == [pytest.approx(30, abs=1), pytest.approx(80, abs=1)]


def test_gap_in_the_samples_or_a_restart_is_not_a_slowdown():
    job = Job().runs(5, 20)
    job.at_s += 36_000
    job.pace.pause()
    assert job.runs(30, 20).found == []

    job.pace.begin_anew(job.at_s)
    assert job.runs(30, 4).found == []


WAITING: dict[str, tuple[dict[int, float], dict[int, float], LastRank | None]] = {
    "for one rank": ({}, {1: 0.65}, LastRank(1, 25, 25)),
    "for no rank: all ranks are slower": ({}, {}, None),
    "for each rank in turn": ({}, {0: 0.2, 1: 0.2, 2: 0.2}, None),
    "rarely, for one rank": ({}, {0: 0.2}, None),
    "for the rank that was last before the slowdown": ({0: 0.6}, {0: 0.7}, None),
    "usually for one rank": ({0: 0.02, 1: 0.02}, {1: 0.6, 2: 0.05}, LastRank(1, 25, 26)),
}


@pytest.mark.parametrize("who", WAITING)
def test_rank_is_blamed_if_others_wait_for_it_only_since_the_slowdown(who):
    before, after, expected = WAITING[who]
    job = Job().runs(5, 20, last=before).runs(4, 7, last=after)
    found = job.pace.last_rank()

    assert job.pace.fall is not None
    assert (found and found.rank) == (expected and expected.rank)
    assert found is None or found.times >= 0.75 * found.looks
