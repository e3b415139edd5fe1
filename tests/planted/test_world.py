"""The decision that ranks of the real NCCL hang."""

from __future__ import annotations

import subprocess

from tests.lab.processes import state
from tests.planted.world import asleep
from tests.waiting import wait_until


def test_exited_rank_is_not_considered_asleep():
    """Its parent may have to wait for the processor before it can report how the rank exited."""
    rank = subprocess.Popen(("true",))
    wait_until(lambda: state(rank.pid) == "Z")

    assert not asleep(rank.pid)
    assert rank.wait() == 0
    assert not asleep(rank.pid)
