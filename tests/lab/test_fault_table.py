"""Every fault of the table has the right finding and culprit, blames no healthy node and leaves no traces.

All runs must end within LIMIT_S, and some within a shorter time. The duration of a row is measured if no other test
runs.
"""

import os

import pytest

from tests.lab import fault_table
from tests.lab.fault_rows import ROWS, Row
from tests.lab.fault_run import run_row
from tests.lab.hosts import why_no_lab

pytestmark = pytest.mark.lab


#: The slowest row of each kind of evidence. Its time starts with this evidence.
IN_TIME = ("inbound-192", "node2-never", "rank-stopped-of-4")  # the start, the end of the wait for nodes, the fault
#: Rows that only a run for the table includes, and the rows or tests that prove the same in every run.
COVERED = {
    "healthy-2": "healthy-ipv6; late",
    "healthy-2-nics": "eth1-chosen; test_several_nics: healthy runs",
    "endpoint-cut": "endpoint-drop",
    "static-port-drop": "endpoint-drop; node2-never, whose endpoint is static",
    "node1-never": "node2-never",
    "rank-twice-of-4": "rank-twice; launch/test_many_nodes: two agents with one node rank",
    "nnodes-differ": "launch/test_many_nodes: nodes that were told different numbers",
    "inbound-10": "inbound-192",
    "black-hole": "black-hole-of-4; test_several_nics: swallows large packets",
    "rate": "test_several_nics: a slow node of three",
    "pairs-slow-node": "pairs-slow-sender",
    "pairs-slow-path": "pairs-slow-direction",
    "loopback-node0-10": "loopback-node0; loopback-node1-10",
    "loopback-node1": "loopback-of-4",
    "loopback-both": "test_several_nics: loopback name",
    "ifname-ib0": "test_several_nics: no such interface",
    "ifname-lo-10": "ifname-lo-192; loopback-node1-10",
    "ifname-lo-both": "ifname-lo-192; ifname-docker0",
    "ifname-eth1-bare": "ifname-eth1-bare-one; ifname-docker0",
    "one-port-drop": "one-port-reject; inbound-192; test_several_nics: ports blocked on the first",
    "dead-port": "dead-port-of-4; link-down",
    "cable-out": "dead-port-of-4; link-down; test_several_nics: cable out",
    "rank-stopped": "rank-stopped-of-4",
    "rank-killed": "rank-killed-of-4",
    "node-frozen": "node-frozen-of-4",
    "power-off": "head-off-of-4; dead-port-of-4",
    "power-off-of-4": "head-off-of-4; dead-port-of-4",
    "head-killed-of-4": "head-off-of-4; launch/test_many_nodes: the head is killed",
}
RUN = [row for row in ROWS if fault_table.VARIABLE in os.environ or row.id not in COVERED]
#: Serial: the seconds of these rows are compared with a limit.
CASES = [pytest.param(row, id=row.id, marks=[pytest.mark.serial] if row.id in IN_TIME else []) for row in RUN]


@pytest.mark.parametrize("row", CASES)
def test_fault_is_reported_with_its_culprit(row: Row) -> None:
    if reason := why_no_lab(*(("cc",) if any("skewed-clock" in fault for fault in row.plant) else ())):
        pytest.skip(reason)
    outcome = run_row(row)
    fault_table.keep(outcome)
    for name, said in outcome.printed.items():
        print(f"--- {name}\n{said}")
    assert outcome.problems == []
    if row.id in IN_TIME:
        assert outcome.late == []


def test_rows_named_here_are_in_the_table() -> None:
    assert {*IN_TIME, *COVERED} <= {row.id for row in ROWS}
