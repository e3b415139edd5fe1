"""Bucket sizes: torch's own layout, steps worked out by hand, and a simulation of events."""

import heapq
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp_doctor.knowledge.ddp.buckets import (
    CANDIDATES_MIB,
    DEFAULT_CAP_MIB,
    MIB,
    Backward,
    Curve,
    Gradient,
    best,
    layout,
    predictions,
    step_seconds,
)

#: 10 ms for the smallest, and 100 MiB/s.
CURVE = Curve(points=((0, 0.010), (MIB, 0.020), (4 * MIB, 0.050)))


def evenly(sizes: list[int], forward_s: float, backward_s: float) -> Backward:
    ready = [backward_s * (place + 1) / len(sizes) for place in range(len(sizes))]
    gradients = tuple(Gradient(size, at) for size, at in zip(sizes, ready, strict=True))
    return Backward(forward_s, backward_s, gradients)


def test_curve_interpolates_its_points_and_continues_with_its_bandwidth():
    assert CURVE.seconds(0) == 0.010
    assert CURVE.seconds(MIB // 2) == pytest.approx(0.015)
    assert CURVE.seconds(4 * MIB) == pytest.approx(0.050)
    assert CURVE.seconds(14 * MIB) == pytest.approx(0.150)
    assert CURVE.latency_s == 0.010
    assert CURVE.bytes_per_s == pytest.approx(100 * MIB)


def test_a_curve_that_noise_bends_down_still_has_a_bandwidth():
    bent = Curve(points=((4, 0.001), (MIB, 0.020), (4 * MIB, 0.010)))

    assert bent.bytes_per_s == pytest.approx(400 * MIB)
    assert Curve(points=((4, 0.001),)).seconds(8) > 0.001


@given(
    st.lists(st.integers(1, 4 * MIB).map(lambda size: 4 * size), min_size=1, max_size=30),
    st.sampled_from(CANDIDATES_MIB),
)
def test_buckets_equal_the_buckets_of_torch(sizes: list[int], cap: float):
    import torch

    distributed: Any = torch.distributed
    tensors = [torch.empty(size // 4, device="meta") for size in sizes]
    limits = [MIB, int(cap * MIB)] if cap == DEFAULT_CAP_MIB else [int(cap * MIB)]

    assigned, _ = distributed._compute_bucket_assignment_by_size(
        tensors, limits, [False] * len(sizes), list(range(len(sizes)))
    )

    assert [[sizes[place] for place in bucket] for bucket in assigned] == layout(sizes, cap)


def test_a_step_worked_out_by_hand():
    # Four gradients of 1 MiB, 25 ms apart. Default buckets [1, 3] MiB: 25 + 20 = 45, then max(100, 45) + 40 = 140.
    # Buckets of 1 MiB: 45, 70, 95, then 100 + 20 = 120. Of 2 MiB: 50 + 30 = 80, then 100 + 30 = 130. One bucket of 4
    # MiB: 100 + 50 = 150.
    seen = evenly([MIB] * 4, forward_s=0.050, backward_s=0.100)

    predicted = predictions(seen, CURVE)

    assert predicted == pytest.approx({25.0: 0.190, 1.0: 0.170, 2.0: 0.180, 4.0: 0.200})
    assert best(predicted) == 1.0


def test_large_buckets_are_best_if_latency_dominates():
    slow = Curve(points=((0, 0.100), (4 * MIB, 0.101)))

    assert best(predictions(evenly([MIB] * 4, 0.01, 0.02), slow)) == 4.0


def simulated(seen: Backward, cap: float) -> float:
    """The same step by events: gradients arrive, a link that does one thing at a time takes buckets."""
    events = [(one.ready_s, number) for number, one in enumerate(seen.gradients)]
    heapq.heapify(events)
    waiting = layout((one.size_bytes for one in seen.gradients), cap)
    link_free, arrived = 0.0, 0
    while events:
        now, _ = heapq.heappop(events)
        arrived += 1
        if waiting and arrived == len(waiting[0]):
            link_free = max(now, link_free) + CURVE.seconds(sum(waiting.pop(0)))
            arrived = 0
    return seen.forward_s + max(seen.backward_s, link_free)


@given(
    st.lists(st.tuples(st.integers(1, 6 * MIB), st.floats(1e-5, 0.05)), min_size=1, max_size=25),
    st.sampled_from(CANDIDATES_MIB),
)
def test_formula_equals_a_simulation_of_events(parts: list[tuple[int, float]], cap: float):
    at, gradients = 0.0, []
    for size, after in parts:
        at += after
        gradients.append(Gradient(size, at))
    seen = Backward(0.01, at, tuple(gradients))

    assert step_seconds(seen, CURVE, cap) == pytest.approx(simulated(seen, cap))
    assert step_seconds(seen, CURVE, cap) >= seen.forward_s + seen.backward_s
