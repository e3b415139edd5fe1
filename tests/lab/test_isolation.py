"""Isolation on eight hosts with real faults: who is to blame is named, and nobody else.

These are some of the rows; ``python -m tests.lab.isolation_run`` runs all of them.
"""

import pytest

from tests.lab.hosts import why_no_lab
from tests.lab.isolation_run import ROWS, run_row

#: Serial: measures rates.
pytestmark = [pytest.mark.lab, pytest.mark.serial]

#: A slow one, two that fail each in its own way, one that dies, and none.
THESE = ("healthy", "slow-nic", "two-at-once", "killed")


@pytest.mark.parametrize("row", [row for row in ROWS if row.id in THESE], ids=lambda row: row.id)
def test_who_is_to_blame_is_named_and_nobody_else(row):
    if reason := why_no_lab("cc"):
        pytest.skip(reason)

    done = run_row(row)

    print(done.said)
    assert (done.named, done.stopped, done.left) == (row.blames, "", [])
    assert done.exits == ({1} if row.blames else {0})
