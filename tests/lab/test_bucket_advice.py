"""Bucket sizes on links of two hosts: predictions, measurements, and the resulting advice.

The hosts share the machine's processors with other load, so the bounds are generous. ``pytest -s`` prints the figures.
"""

from statistics import median
from typing import Any

import pytest

from tests.lab import faults
from tests.lab.hosts import Lab, why_no_lab
from tests.lab.several_nics import FIRST, Run, run

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

#: Measured over predicted. Processors that others use make both ranks and their communication slower.
FACTOR = 3.0


@pytest.fixture(autouse=True)
def _lab() -> None:
    if reason := why_no_lab():
        pytest.skip(reason)


def steps(*plant: str, options: tuple[str, ...] = (), level: str = "thorough") -> Run:
    """Run only the steps on two hosts."""
    with Lab(nodes=2) as lab:
        for fault in plant:
            faults.plant(lab, fault)
        done = run(lab, FIRST, "--only", "step_time", *options, level=level)
    assert done.problems == [], done.texts["node0"]
    if not options:
        assert (done.exits, done.findings()) == ({0}, {}), done.texts["node0"]
    return done


def facts(done: Run) -> list[dict[str, Any]]:
    return [one["fact"] for one in done.recording["readings"] if one["check"] == "step_time"]


def codes(done: Run) -> set[str]:
    return {one["code"] for one in done.report["findings"]}


def tried(done: Run) -> dict[float, tuple[float, float]]:
    """Return, for each tried size, the prediction and the median of the slowest rank's steps."""
    both = zip(*(fact["buckets"]["trials"] for fact in facts(done)), strict=True)
    found = {}
    for trials in both:
        rounds = zip(*(one["step_s"] for one in trials), strict=True)
        found[trials[0]["cap_mib"]] = (trials[0]["predicted_s"], median(map(max, rounds)))
    return found


def tell(plant: tuple[str, ...], done: Run) -> None:
    first = facts(done)[0]["buckets"]
    predicted = {cap: f"{1e3 * took:.0f}" for cap, took in first["predicted_s"].items()}
    print(f"\n{' '.join(plant) or 'no limit'}: predicted ms by MiB {predicted}")
    for cap, (foretold, took) in tried(done).items():
        print(f"  {cap:g} MiB: predicted {1e3 * foretold:.0f} ms, measured {1e3 * took:.0f} ms")
    print(f"  said: {', '.join(sorted(codes(done))) or 'nothing'}")


def test_small_buckets_on_a_slow_link_are_advised_only_if_they_win():
    plant = ("rate:node1:100",)
    done = steps(*plant)
    tell(plant, done)
    found = tried(done)

    assert len(found) == 2
    (_, usual), (small, (_, best)) = found[25.0], next(one for one in found.items() if one[0] != 25.0)
    assert small < 4
    assert "DD820" not in codes(done) or best < 0.95 * usual
    assert "DD810" in codes(done)  # a net that computes for 10 ms waits for such a link, whatever it does
    assert not any(one["settings"] for finding in done.report["findings"] for one in finding["remedies"])


@pytest.mark.serial  # on a busy machine the steps of this model may not fit into the time of the check
def test_users_model_is_advised_by_name_with_prediction_and_measurement():
    name = "tests.models.healthy:deep_net"
    plant = ("rate:node1:200",)
    done = steps(*plant, options=("--model", name, "--only", "user_model"), level="standard")
    tell(plant, done)
    said = {one["code"]: f"{one['title']}. {one['detail']}" for one in done.report["findings"]}
    for code, text in said.items():
        print(f"  {code}: {text}")
    found = tried(done)

    assert {fact["model"] for fact in facts(done)} == {name}
    assert len(found) == 2
    assert all(1 / FACTOR < took / foretold < FACTOR for foretold, took in found.values())
    (_, usual), (small, (_, best)) = found[25.0], next(one for one in found.items() if one[0] != 25.0)
    assert small < 4
    assert "DD820" not in said or best < 0.95 * usual
    assert all(name in said[code] for code in said if code.startswith("DD8"))
    assert not {code for code in said if code.startswith(("DD6", "DD7"))}


def test_no_small_buckets_are_advised_if_every_collective_has_high_latency():
    plant = ("rate:node1:200", "delay:node1:20")
    done = steps(*plant)
    tell(plant, done)
    predicted = {float(cap): took for cap, took in facts(done)[0]["buckets"]["predicted_s"].items()}

    assert predicted[0.25] > 1.5 * predicted[25.0]
    assert min(tried(done), default=25.0) >= 1


@pytest.mark.serial  # the processors are slower than the link, and on a busy machine no size is tried
def test_fast_link_has_only_info_findings_and_no_losing_size_is_advised():
    done = steps()
    tell((), done)
    found = tried(done)

    assert "DD820" not in codes(done) or min(found.values(), key=lambda one: one[1]) != found[25.0]
    assert "DD811" not in codes(done)
    assert "DD812" not in codes(done)
