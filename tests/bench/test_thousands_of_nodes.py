"""The bar for big worlds: a recording of 4,096 nodes of eight ranks is diagnosed and rendered within 10 s."""

import time

import pytest

from ddp_doctor.model.recording import Recording
from tests import simulated
from tests.engine.test_thousands_of_ranks import judged, keep_own_parameters, lose_gpu_3, on_bad_node, stop

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

NODES = 4096
BAR_S = 10.0


def _healthy() -> Recording:
    return simulated.recording(NODES)


def _lost_gpu() -> Recording:
    return simulated.recording(NODES, on_bad_node("gpus", lose_gpu_3))


def _other_parameters() -> Recording:
    return simulated.recording(NODES, on_bad_node("buffers", keep_own_parameters))


def _stuck() -> Recording:
    return simulated.recording(NODES).model_copy(update={"trials": (stop(NODES, 77),)})


def _stuck_by_half() -> Recording:
    return simulated.recording(NODES).model_copy(update={"trials": (stop(NODES, *range(0, NODES, 2)),)})


@pytest.mark.parametrize("make", [_healthy, _lost_gpu, _other_parameters, _stuck, _stuck_by_half])
def test_32768_ranks_are_diagnosed_and_rendered_within_the_bar(make):
    recording = make()
    started = time.perf_counter()

    made, lines = judged(recording)

    seconds = time.perf_counter() - started
    codes = ", ".join(finding.code for finding in made.findings) or "no finding"
    print(f"\n  {make.__name__}: {seconds:.2f} s, {codes}, {len(lines)} lines", end="")
    assert seconds <= BAR_S
