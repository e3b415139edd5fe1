"""A simulated machine and nvidia-smi: its output equals ddp-doctor's reading of NVML and /sys."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.lab.hosts import ROOT
from tests.planted import TOOLS, libraries
from tests.planted.machines import MACHINES, Kind
from tests.planted.test_nccl import skip_where_none_can_be_planted
from tests.planted.world import Machines

pytestmark = pytest.mark.planted

WITNESSED = [ROOT / f"tests/gpu/test_{name}.py" for name in ("nvml", "topology")]


@pytest.mark.parametrize("kind", MACHINES, ids=lambda kind: kind.name)
def test_tests_that_compare_with_nvidia_smi_pass_on_a_simulated_machine(kind: Kind):
    skip_where_none_can_be_planted()
    [machine, *_] = kind.build()
    with Machines([machine]) as planted:
        env = {
            "PATH": f"{libraries() / TOOLS}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": str(libraries()),
            **(machine.nvml or {}),
        }
        argv = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", *map(str, WITNESSED))
        process = planted.hosts[0].start(argv, env=env)
        code, said = process.wait(), process.output()

    assert code == 0, said
    assert "skipped" not in said
