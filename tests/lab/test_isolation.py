"""Isolation on six hosts with real faults blames the right host and no other.

These are some of the rows; ``python -m tests.lab.isolation_run`` runs all of them.
"""

import pytest

from tests.lab.hosts import why_no_lab
from tests.lab.isolation_run import ROWS, Row, run_row

pytestmark = pytest.mark.lab

#: No bad node, a slow node, two nodes that fail differently, and a node that dies.
THESE = ("healthy", "slow-nic", "two-at-once", "killed")
#: Even with two faults at once, most hosts are healthy.
HOSTS = 6


#: Serial: the rates of healthy nodes are compared. "killed" compares none: it ends when contact to the node is lost.
CASES = [
    pytest.param(row, id=row.id, marks=[] if row.id == "killed" else [pytest.mark.serial])
    for row in ROWS
    if row.id in THESE
]


@pytest.mark.parametrize("row", CASES)
def test_only_the_right_host_is_blamed(row: Row) -> None:
    if reason := why_no_lab("cc"):
        pytest.skip(reason)

    done = run_row(row, HOSTS)

    print(done.said)
    assert (done.named, done.stopped, done.left) == (row.blames, "", [])
    assert done.exits == ({1} if row.blames else {0})
