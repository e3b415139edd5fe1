"""topology on a real machine: the installed driver's own output, with nothing in between."""

import os
import time

import pytest

from ddp_doctor.checks.topology import TopologyFact, probe
from ddp_doctor.model.fact import Absent
from ddp_doctor.sources.machine import LiveContext

pytestmark = pytest.mark.gpu


def test_the_installed_driver_prints_a_matrix_that_is_read_whole():
    ctx = LiveContext(dict(os.environ), time.monotonic() + 30)
    listed = ctx.run(["nvidia-smi", "-L"])
    try:
        fact = probe(ctx)
    except Absent as reason:
        pytest.skip(f"needs an NVIDIA GPU: {reason}")
    assert isinstance(fact, TopologyFact)
    gpus = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    assert len(fact.gpus) == len(gpus)
    assert fact.warnings == ()
    assert all(fact.numa_affinity.values())
